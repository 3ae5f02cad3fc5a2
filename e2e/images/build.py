"""From sources to an archive: nothing to do when the sources are those of an archive we have."""

import os
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from e2e.images import archive, base, cache, pip_settings
from e2e.images.buildah import Buildah
from e2e.images.check import check
from e2e.images.errors import ImageError

ROOT = Path(__file__).resolve().parents[2]
COMMON = (".dockerignore", "pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE", "NOTICE")


@dataclass(frozen=True)
class Image:
    """One image: what its Dockerfile copies (so that a change elsewhere builds nothing) and what it may become."""

    name: str
    sources: tuple[str, ...]
    limit: int | None
    """Bytes above the base; None: no limit."""
    torch: bool
    compiled: bool = False
    """The router's hot path is in it, and compiled."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Build arguments of this Dockerfile alone."""
    entrypoint: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    """Of the package; all they require has to be installed."""

    @property
    def dockerfile(self) -> str:
        return f"Dockerfile.{self.name}"

    @property
    def requirements(self) -> list[str]:
        """What ``pyproject.toml`` requires for the image's programs."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        return [*project["dependencies"], *(line for extra in self.extras for line in extras[extra])]


OPERATOR = Image(
    "operator",
    ("engine/blade_protocol", "engine/blade_telemetry", "router", "operator"),
    limit=250 * 10**6,
    torch=False,
    compiled=True,
    extras=("operator", "router", "tracing"),
)
# ``TORCH_INDEX`` in the environment: a further package index, where the CPU build of torch can come from.
CPU = (("EXPECT_CPU", "1"), ("TORCH_INDEX", os.environ.get("TORCH_INDEX", "")))
ENGINE = Image(
    "engine",
    ("engine",),
    limit=None,
    torch=True,
    arguments=CPU,
    entrypoint=("blade_llm_server",),
    extras=("engine", "gguf", "oss", "s3", "tracing"),
)
IMAGES = {image.name: image for image in (OPERATOR, ENGINE)}


def version(root: Path = ROOT) -> str:
    """The project's version, which is the images' tag."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def ensure(image: Image, tag: str, folder: Path | None = None) -> Path:
    """Build ``docker.io/bladellm/NAME:TAG`` unless it is there, and return its archive.

    Raises:
        ImageError: the build failed, or the image is not what it should be.
    """
    folder = folder or cache.folder()
    key = cache.digest(ROOT, [image.dockerfile, *COMMON, *image.sources], base.KEY, tag, repr(image.arguments))
    path = folder / f"{image.name}-{key}.tar"
    with cache.locked(folder):
        if path.exists():
            path.touch()  # the most recently used ones are kept
        else:
            start = time.monotonic()
            say(f"building {image.name}:{tag} ({folder}/build.log)")
            size = _build(image, tag, path)
            cache.prune(folder, f"{image.name}-*.tar")
            say(f"built {image.name}:{tag} in {time.monotonic() - start:.0f} s, {size / 1e6:.0f} MB above its base")
    return path


def _build(image: Image, tag: str, path: Path) -> int:
    if os.geteuid() != 0:
        raise ImageError("building images needs root; run this with sudo, or give ready images in E2E_IMAGES")
    buildah = Buildah(path.parent)
    buildah.trim()
    base.ensure(buildah, path.parent)
    reference = f"docker.io/bladellm/{image.name}:{tag}"
    with tempfile.TemporaryDirectory(prefix="pip-", dir=path.parent) as staging:
        mounts = [f"--volume={mount}" for mount in pip_settings.prepare(Path(staging))]
        arguments = {**dict(image.arguments), "VERSION": tag, "PIP_CONFIG_FILE": pip_settings.CONFIG}
        buildah(
            "bud",
            "--isolation=chroot",
            "--pull-never",
            "--layers",
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *mounts,
            f"--file={ROOT / image.dockerfile}",
            f"--tag={reference}",
            str(ROOT),
        )
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        buildah("push", "--quiet", reference, f"docker-archive:{partial}:{reference}")
        size = check(
            archive.read(partial, skip=1),
            limit=image.limit,
            torch=image.torch,
            compiled=image.compiled,
            entrypoint=image.entrypoint,
            requirements=image.requirements,
        )
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    return size


def say(text: str) -> None:
    """One line of progress; standard output stays free for the paths."""
    print(f"images: {text}", file=sys.stderr, flush=True)
