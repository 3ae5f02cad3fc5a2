"""Downloads against a hub that limits, breaks off, lies and disappears."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from hub_support.fake_hub import COMMIT, FakeHub, running_hub, sha256
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.api.common.pooling import find_pooling
from blade_llm.hub import download as hub_download
from blade_llm.hub.model import Progress, RemoteFile
from blade_llm.hub.resolve import resolve_model
from blade_llm.models.errors import ModelFilesError

REPO = "acme/tiny"


def use_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """What the library does with ``HF_ENDPOINT`` when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with running_hub() as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        hub.add(REPO, make_model(tmp_path / "source", shards=2))
        hub.repositories[REPO] |= {
            "README.md": b"not needed",
            "pytorch_model.bin": b"not needed",
            "onnx/model.safetensors": b"not needed",
        }
        yield hub


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made."""
    made: list[float] = []
    monkeypatch.setattr(hub_download, "_wait", lambda seconds, stop: made.append(seconds))
    return made


def shard(hub: FakeHub, number: int = 1) -> bytes:
    return hub.repositories[REPO][f"model-{number:05d}-of-00002.safetensors"]


def storage(hub: FakeHub, number: int = 1) -> str:
    return f"/storage/{sha256(shard(hub, number))}"


def assert_complete(folder: Path, hub: FakeHub) -> None:
    wanted = {n: d for n, d in hub.repositories[REPO].items() if n.endswith((".json", ".safetensors")) and "/" not in n}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted


def test_downloads_what_the_engine_needs_and_then_sends_no_more_requests(hub: FakeHub) -> None:
    folder = resolve_model(REPO)
    assert folder.name == COMMIT
    assert_complete(folder, hub)
    num_requests = len(hub.requests)
    assert resolve_model(f"hf://{REPO}") == folder
    assert resolve_model(f"{REPO}@{COMMIT}") == folder
    assert len(hub.requests) == num_requests


def test_how_a_model_pools_comes_with_it(hub: FakeHub) -> None:
    hub.repositories[REPO] = {
        **hub.repositories[REPO],
        "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}',
        "2_Normalize/config.json": b"{}",
    }
    folder = resolve_model(REPO)
    assert find_pooling(folder) == "last"
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["1_Pooling"]
    pooling = folder / "1_Pooling" / "config.json"
    assert pooling.is_symlink()
    assert pooling.resolve().parent.name == "blobs"


@pytest.mark.parametrize(
    "name", ["qwen.tiktoken", "tiktoken.model", "sentencepiece.bpe.model", "tekken.json", "merges.txt"]
)
def test_tokenizers_of_other_forms_come_with_it_and_complete_it(hub: FakeHub, name: str) -> None:
    files = dict(hub.repositories[REPO])
    content = files.pop("tokenizer.json")
    hub.repositories[REPO] = {**files, name: content}
    folder = resolve_model(REPO)
    assert (folder / name).is_file()
    num_requests = len(hub.requests)
    assert resolve_model(REPO) == folder
    assert len(hub.requests) == num_requests


@pytest.mark.parametrize("config", [b'{"draft_vocab_size": 32000}', b'{"architectures": ["LlamaForCausalLMEagle3"]}'])
def test_a_draft_head_is_complete_without_a_tokenizer(
    hub: FakeHub, config: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {name: data for name, data in hub.repositories[REPO].items() if "safetensors" in name and "/" not in name}
    hub.add("acme/head", {**weights, "config.json": config})
    folder = resolve_model("acme/head")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("acme/head") == folder


def test_layers_for_multi_token_prediction_come_with_the_shards(hub: FakeHub) -> None:
    hub.repositories[REPO] = {**hub.repositories[REPO], "mtp.safetensors": b"x", "vision.safetensors": b"x"}
    names = {path.name for path in resolve_model(REPO).iterdir()}
    assert {"mtp.safetensors", "model-00001-of-00002.safetensors"} <= names
    assert "vision.safetensors" not in names


def test_the_hub_library_finds_the_snapshot(hub: FakeHub) -> None:
    from huggingface_hub import snapshot_download

    folder = resolve_model(REPO)
    assert snapshot_download(REPO, local_files_only=True, cache_dir=constants.HF_HUB_CACHE) == str(folder)


def test_a_snapshot_made_by_the_hub_library_is_used(hub: FakeHub) -> None:
    folder = resolve_model(REPO)
    for path in folder.iterdir():  # as the library leaves it: nothing but links into blobs
        assert path.is_symlink()
        assert path.resolve().parent.name == "blobs"
    (folder / "tokenizer.json").unlink()  # a download that the library was interrupted in
    assert_complete(resolve_model(REPO), hub)


def test_progress_reaches_the_total_and_never_passes_it(hub: FakeHub) -> None:
    seen: list[Progress] = []
    hub.fault(storage(hub), cut_after=300)
    folder = resolve_model(REPO, progress=seen.append)
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert {progress.total_bytes for progress in seen} == {total}
    assert all(0 <= progress.done_bytes <= total for progress in seen)
    assert seen[-1].done_bytes == total
    assert seen[-1].files_done == seen[-1].files_total == 6


def test_a_cut_connection_is_continued_where_it_broke(hub: FakeHub, pauses: list[float]) -> None:
    hub.fault(storage(hub), cut_after=300)
    assert_complete(resolve_model(REPO), hub)
    assert [request.range for request in hub.asked(storage(hub))] == [None, "bytes=300-"]
    assert len(pauses) == 1


def test_a_killed_download_is_continued_by_the_next_process(hub: FakeHub, pauses: list[float]) -> None:
    blobs = Path(constants.HF_HUB_CACHE) / "models--acme--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256(shard(hub))}.partial").write_bytes(shard(hub)[:1000])
    assert_complete(resolve_model(REPO), hub)
    assert [request.range for request in hub.asked(storage(hub))] == ["bytes=1000-"]
    assert not list(blobs.glob("*.partial"))


def test_a_server_without_ranges_sends_the_file_again(hub: FakeHub, pauses: list[float]) -> None:
    hub.fault(storage(hub), cut_after=300)
    hub.fault(storage(hub), ignore_range=True)
    assert_complete(resolve_model(REPO), hub)


def test_wrong_content_is_noticed_and_fetched_again(hub: FakeHub) -> None:
    hub.fault(storage(hub), corrupt=True)
    assert_complete(resolve_model(REPO), hub)
    assert len(hub.asked(storage(hub))) == 2


def test_wrong_content_of_a_small_file_is_noticed_too(hub: FakeHub) -> None:
    hub.fault("/config.json", corrupt=True)
    assert_complete(resolve_model(REPO), hub)
    assert len(hub.asked("/config.json")) == 2


def test_content_that_stays_wrong_is_an_error_and_no_model(hub: FakeHub) -> None:
    hub.fault(storage(hub), corrupt=True, times=9)
    with pytest.raises(ModelFilesError, match=r"model-00001-of-00002.safetensors arrived with the checksum .* twice"):
        resolve_model(REPO)
    assert not list(Path(constants.HF_HUB_CACHE).glob("*/snapshots/*/*"))
    hub.faults.clear()
    assert_complete(resolve_model(REPO), hub)


@pytest.mark.parametrize("path", ["/api/models/", "/storage/"])
def test_429_waits_as_long_as_the_hub_requests_and_a_little_more(hub: FakeHub, pauses: list[float], path: str) -> None:
    hub.fault(path, status=429, headers={"Retry-After": "7"}, times=2)
    assert_complete(resolve_model(REPO), hub)
    assert len(pauses) == 2
    assert all(7 <= pause <= 8 for pause in pauses)


def test_a_busy_hub_is_retried_with_back_off(hub: FakeHub, pauses: list[float]) -> None:
    hub.fault("/api/models/", status=503, times=4)
    assert_complete(resolve_model(REPO), hub)
    assert [0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses)] == [True] * 4


def test_429_is_not_retried_for_ever(hub: FakeHub, pauses: list[float]) -> None:
    hub.fault("/api/models/", status=429, times=99)
    with pytest.raises(ModelFilesError, match=r"limits requests \(429\) and still did after 6 tries.*HF_TOKEN"):
        resolve_model(REPO)
    assert len(hub.requests) == hub_download.MAX_TRIES
    assert len(pauses) == hub_download.MAX_TRIES - 1


def test_a_pause_of_an_hour_is_not_waited_for(hub: FakeHub, pauses: list[float]) -> None:
    hub.fault("/api/models/", status=429, headers={"Retry-After": "3600"}, times=99)
    with pytest.raises(ModelFilesError, match="limits requests"):
        resolve_model(REPO)
    assert pauses == []


def test_an_unknown_model_is_refused_with_advice_to_check_the_name(hub: FakeHub) -> None:
    with pytest.raises(ModelFilesError, match=r"model acme/tinny does not exist on .*check the name"):
        resolve_model("acme/tinny")


def test_an_unknown_revision_is_named(hub: FakeHub) -> None:
    with pytest.raises(ModelFilesError, match="no revision 'v9'"):
        resolve_model(f"{REPO}@v9")


def test_a_gated_model_requires_a_token_and_takes_it(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, hub.repositories[REPO], token="hf_right")
    with pytest.raises(ModelFilesError, match=r"not public.*set HF_TOKEN"):
        resolve_model(REPO)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelFilesError, match=r"is gated .*accept its terms.*HF_TOKEN"):
        resolve_model(REPO)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert_complete(resolve_model(REPO), hub)


def test_an_unreachable_hub_says_what_to_do(hub: FakeHub, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(
        ModelFilesError, match=r"cannot reach the model hub http://127.0.0.1:1 .*MODEL=FOLDER.*HF_ENDPOINT"
    ):
        resolve_model(REPO)
    assert len(pauses) == hub_download.MAX_CONNECT_TRIES - 1


def test_offline_uses_the_cache_and_else_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFilesError, match="HF_HUB_OFFLINE forbids downloads"):
        resolve_model(REPO)
    assert hub.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = resolve_model(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model(REPO) == folder


def test_too_little_space_is_known_before_the_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 0, 100))
    with pytest.raises(ModelFilesError, match=r"needs \d+ bytes .* 100 are free.*HF_HOME"):
        resolve_model(REPO)
    assert not hub.asked("/resolve/")


def test_a_disk_that_fills_up_is_reported_as_that(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_download, "_fetch_once", full)
    with pytest.raises(ModelFilesError, match=r"no space left in .*HF_HOME"):
        resolve_model(REPO)


def test_a_repository_without_weights_is_refused_before_the_download(hub: FakeHub) -> None:
    hub.add("acme/bare", {"config.json": b"{}", "consolidated.00.pth": b"x"})
    with pytest.raises(ModelFilesError, match=r"no \*\.safetensors and no pytorch_model\.bin"):
        resolve_model("acme/bare")
    assert not hub.asked("/resolve/")


def test_pickled_weights_are_fetched_where_there_are_no_others(hub: FakeHub) -> None:
    hub.add("acme/pickled", {**hub.repositories[REPO], "pytorch_model.bin": b"x", "training_args.bin": b"x"})
    files = hub.repositories["acme/pickled"]
    assert "pytorch_model.bin" not in {path.name for path in resolve_model("acme/pickled").iterdir()}
    without = {name: data for name, data in files.items() if "safetensors" not in name}
    hub.add("acme/only-pickled", without)
    assert {path.name for path in resolve_model("acme/only-pickled").iterdir()} >= {"pytorch_model.bin", "config.json"}
    assert not hub.asked("training_args")


def test_two_at_once_download_once(hub: FakeHub) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(resolve_model(REPO))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3
    assert len(set(folders)) == 1
    assert len(hub.asked("/api/models/")) == 1
    assert len(hub.asked(storage(hub))) == 1


def test_the_environment_names_hub_cache_and_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(REPO, hub.repositories[REPO], token="hf_right")
    log = tmp_path / "log"
    ran = subprocess.run(
        [sys.executable, "-m", "blade_llm.cli.fetch", "--model", REPO],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": "hf_right",
            "BLADE_TERMINATION_LOG": str(log),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    folder = Path(ran.stdout.strip())
    assert folder.is_relative_to(tmp_path / "home")
    assert_complete(folder, hub)
    assert "6/6 files" in ran.stderr
    assert log.read_text().startswith('{"model":"acme/tiny","ready":true,')


def test_a_server_that_sends_more_than_the_file_is_cut_off(hub: FakeHub, tmp_path: Path) -> None:
    data = shard(hub)
    file = RemoteFile("part", f"{hub.endpoint}{storage(hub)}", 100, sha256(data[:100]))
    counts: list[int] = []
    hub_download.download(file, tmp_path / "part", headers={}, stop=threading.Event(), on_bytes=counts.append)
    assert (tmp_path / "part").read_bytes() == data[:100]
    assert sum(counts) == 100
