"""Everything around the build that needs no buildah: what makes a new image, what pip sees, what is refused."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from e2e.images import archive, cache, check, pip_settings
from e2e.images.build import COMMON, IMAGES, ROOT
from e2e.images.errors import ImageError

GOOD = {"User": check.USER, "Labels": dict.fromkeys(check.LABELS, "x")}


def image(path: Path, layers: list[list[str]], config: dict[str, Any] = GOOD) -> Path:
    """A docker archive with empty files of these names."""

    def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))

    with tarfile.open(path, "w") as outer:
        for number, names in enumerate(layers):
            layer = io.BytesIO()
            with tarfile.open(fileobj=layer, mode="w") as inner:
                for name in names:
                    add(inner, name, b"")
            add(outer, f"{number}.tar", layer.getvalue())
        add(outer, "config.json", json.dumps({"config": config}).encode())
        files = [f"{number}.tar" for number in range(len(layers))]
        manifest = [{"Config": "config.json", "RepoTags": ["bladellm/x:1"], "Layers": files}]
        add(outer, "manifest.json", json.dumps(manifest).encode())
    return path


class TestKey:
    def make(self, root: Path) -> None:
        (root / "source" / "__pycache__").mkdir(parents=True)
        (root / "source" / "a.py").write_text("a")
        (root / "Dockerfile").write_text("FROM x")

    def key(self, root: Path, *others: str) -> str:
        return cache.digest(root, ["Dockerfile", "source"], *others)

    def test_is_the_same_for_the_same_content_wherever_it_lies(self, tmp_path: Path) -> None:
        self.make(tmp_path / "one")
        self.make(tmp_path / "two")
        (tmp_path / "two" / "source" / "__pycache__" / "a.pyc").write_text("compiled")
        assert self.key(tmp_path / "one") == self.key(tmp_path / "two")

    def test_changes_with_content_names_and_arguments(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        keys = [self.key(tmp_path), self.key(tmp_path, "argument")]
        (tmp_path / "source" / "a.py").write_text("b")
        keys.append(self.key(tmp_path))
        (tmp_path / "source" / "a.py").rename(tmp_path / "source" / "b.py")
        keys.append(self.key(tmp_path))
        (tmp_path / "Dockerfile").write_text("FROM y")
        keys.append(self.key(tmp_path))
        assert len(set(keys)) == 5

    def test_a_missing_source_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="Dockerfile is missing"):
            self.key(tmp_path)

    @pytest.mark.parametrize("name", sorted(IMAGES))
    def test_covers_every_file_the_dockerfile_copies(self, name: str) -> None:
        """Else a change of that file would give the old image."""
        lines = (ROOT / IMAGES[name].dockerfile).read_text().splitlines()
        copied = {
            word.removeprefix("/")
            for line in lines
            if line.startswith("COPY ") and "--from" not in line
            for word in line.split()[1:-1]
        }
        assert copied <= {*COMMON, *IMAGES[name].sources}
        assert set(IMAGES[name].sources) <= copied

    @pytest.mark.parametrize("name", sorted(IMAGES))
    def test_everything_copied_is_in_the_build_context(self, name: str) -> None:
        kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        assert {source.split("/")[0] for source in (*COMMON, *IMAGES[name].sources)} - {".dockerignore"} <= kept


def test_only_the_two_most_recently_used_archives_stay(tmp_path: Path) -> None:
    for age, name in enumerate(["x-new.tar", "x-used.tar", "x-old.tar", "y-old.tar"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    cache.prune(tmp_path, "x-*.tar")
    assert {file.name for file in tmp_path.iterdir()} == {"x-new.tar", "x-used.tar", "y-old.tar"}


class TestPipSettings:
    def test_the_environment_outranks_files(self) -> None:
        lines = [":env:.timeout='9'", "global.timeout='1'", "install.find-links='/a /b'", "freeze.timeout='3'", "odd"]
        assert pip_settings.parse_settings(lines) == {"timeout": "9", "find-links": "/a /b"}

    def test_folders_of_this_machine_are_mounted_and_renamed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wheels, index, staging = tmp_path / "wheels", tmp_path / "pypi" / "simple", tmp_path / "staging"
        for folder in (wheels, index, staging):
            folder.mkdir(parents=True)
        bundle = tmp_path / "bundle.pem"
        bundle.write_text("trusted")
        settings = {
            "cert": str(bundle),
            "find-links": f"{wheels} {tmp_path}/gone https://example.org/wheels",
            "extra-index-url": f"file://{index}",
            "index-url": "https://example.org/simple",
        }
        monkeypatch.setattr(pip_settings, "read_settings", lambda: settings)
        mounts = pip_settings.prepare(staging)
        assert [str(mount) for mount in mounts] == [
            f"{staging}:/mnt:ro",
            f"{index.parent}:/mnt/1:ro",
            f"{wheels}:/mnt/2:ro",
        ]
        assert (staging / "pip.conf").read_text().splitlines() == [
            "[global]",
            "cert = /mnt/ca.pem",
            "index-url = https://example.org/simple",
            "extra-index-url = file:///mnt/1/simple",
            f"find-links = /mnt/2 {tmp_path}/gone https://example.org/wheels",
        ]
        assert (staging / "ca.pem").read_text() == "trusted"
        assert all((staging / point).is_dir() for point in "12")  # or nothing could be mounted there


class TestCheck:
    def test_counts_only_what_lies_above_the_base(self, tmp_path: Path) -> None:
        contents = archive.read(image(tmp_path / "x.tar", [["base/bin/gcc"] * 100, ["./opt/a"]]), skip=1)
        assert contents.tags == ("bladellm/x:1",)
        assert [layer.names for layer in contents.layers] == [("opt/a",)]
        assert check.check(contents, limit=20_000, torch=False) == contents.layers[0].size

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("opt/bladellm/lib/python3.11/site-packages/torch/__init__.py", "must not contain"),
            ("opt/bladellm/lib/python3.11/site-packages/nvidia/cublas/lib.so", "must not contain"),
            ("usr/bin/x86_64-linux-gnu-gcc-12", "a compiler stayed"),
            ("usr/bin/c++", "a compiler stayed"),
            ("var/lib/apt/lists/index", "package lists stayed"),
            ("etc/pip.conf", "pip, its cache or its settings stayed"),
            ("mnt/wheels", "something of a mount stayed"),
            ("source/engine", "sources or build files stayed"),
        ],
    )
    def test_refuses_what_does_not_belong(self, tmp_path: Path, name: str, said: str) -> None:
        contents = archive.read(image(tmp_path / "x.tar", [["opt/bladellm/bin/python", name]]))
        with pytest.raises(ImageError, match=said):
            check.check(contents, limit=None, torch=False)

    def test_refuses_a_router_whose_hot_path_is_interpreted(self, tmp_path: Path) -> None:
        router = "opt/bladellm/lib/python3.11/site-packages/blade_router"
        contents = archive.read(image(tmp_path / "x.tar", [[f"{router}/router.py"]]))
        with pytest.raises(ImageError, match="not compiled"):
            check.check(contents, limit=None, torch=False, compiled=True)
        library = f"{router}/compiled/modules/0f-cpython-311/blade_router__mypyc.cpython-311.so"
        contents = archive.read(image(tmp_path / "y.tar", [[library]]))
        assert check.check(contents, limit=None, torch=False, compiled=True) > 0

    def test_refuses_an_image_without_a_required_package(self, tmp_path: Path) -> None:
        packages = "opt/bladellm/lib/python3.11/site-packages"
        names = [f"{packages}/minio-7.2.20.dist-info/METADATA", f"{packages}/huggingface_hub-1.2.dist-info/METADATA"]
        contents = archive.read(image(tmp_path / "x.tar", [names]))
        there = ["minio>=7.2.16", "huggingface-hub>=1.0"]
        assert check.check(contents, limit=None, torch=False, requirements=there) > 0
        with pytest.raises(ImageError, match=r"packages are missing: gguf$"):
            check.check(contents, limit=None, torch=False, requirements=[*there, "gguf>=0.17"])

    def test_refuses_another_entry_point(self, tmp_path: Path) -> None:
        config = {**GOOD, "Entrypoint": ["blade_llm_server"]}
        contents = archive.read(image(tmp_path / "x.tar", [["opt/a"]], config))
        assert check.check(contents, limit=None, torch=False, entrypoint=("blade_llm_server",)) > 0
        with pytest.raises(ImageError, match="its entry point is"):
            check.check(contents, limit=None, torch=False)

    def test_refuses_a_missing_torch_and_names_everything_at_once(self, tmp_path: Path) -> None:
        config = {"User": "", "Labels": {}}
        contents = archive.read(image(tmp_path / "x.tar", [["opt/a"]], config))
        with pytest.raises(ImageError, match=r"bladellm/x:1: it adds .* more than .*torch is missing.*user.*labels"):
            check.check(contents, limit=10, torch=True)
