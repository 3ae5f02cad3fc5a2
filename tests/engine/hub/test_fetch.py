"""What a model's name means, and ``blade_llm_fetch``: a model as a folder on a volume."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hub_support.fake_hub import FakeHub, running_hub
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.cli import fetch
from blade_llm.hub import download as hub_download
from blade_llm.hub.materialize import MARKER, materialize
from blade_llm.hub.model import HubModel
from blade_llm.hub.resolve import parse_model, resolve_model
from blade_llm.models.errors import ModelFilesError


@pytest.fixture(autouse=True)
def no_termination_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    log = tmp_path / "termination-log"
    monkeypatch.setenv("BLADE_TERMINATION_LOG", str(log))
    return log


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub_download, "_wait", lambda seconds, stop: None)
        for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        hub.add("acme/tiny", make_model(tmp_path / "source"))
        yield hub


def test_a_folder_is_itself_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(folder)) == folder
    assert resolve_model(f"file://{folder}") == folder
    assert resolve_model("~/org/name") == folder
    assert resolve_model("org/name").samefile(folder)  # before it is a hub id


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("org/name", HubModel("org/name")),
        ("org/name@v1.2", HubModel("org/name", "v1.2")),
        ("hf://org/name", HubModel("org/name")),
        ("hf://org/name@refs/pr/1", HubModel("org/name", "refs/pr/1")),
        ("hf://gpt2", HubModel("gpt2")),
    ],
)
def test_hub_ids(text: str, meaning: HubModel) -> None:
    assert parse_model(text) == meaning


def test_a_revision_given_apart_wins() -> None:
    assert parse_model("org/name@old", revision="new") == HubModel("org/name", "new")


@pytest.mark.parametrize("path", ["/no/such", "./no-such", "../no/such", "~/no/such", "no-such", "file:///no/such"])
def test_a_path_that_does_not_exist_is_never_looked_up(path: str, hub: FakeHub) -> None:
    with pytest.raises(ModelFilesError, match=r"does not exist; give a folder with config.json"):
        resolve_model(path)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the model is empty"),
        ("gs://bucket/model", "unknown scheme 'gs'"),
        ("a/b/c", "neither a folder that exists nor a hub id"),
        ("hf://a b", "neither a folder that exists nor a hub id"),
        ("org/name@../../x", "not a branch, tag or commit"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        parse_model(text)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFilesError, match="is a file; give the folder it is in"):
        parse_model(str(tmp_path / "model.safetensors"))


def test_a_local_model_needs_no_hub_library(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    code = (
        "import sys; from blade_llm.hub.resolve import resolve_model; resolve_model(sys.argv[1]);"
        "sys.exit('huggingface_hub' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True, timeout=60)


def model_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MARKER}


def leftovers(volume: Path) -> list[str]:
    return sorted(path.name for path in volume.iterdir() if not path.name.endswith(".lock"))


def test_fetch_fills_a_volume_and_leaves_nothing_else(hub: FakeHub, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    output = volume / "tiny"
    assert fetch.main(["--model", "hf://acme/tiny", "--output_dir", str(output)]) == 0
    assert model_files(output) == hub.repositories["acme/tiny"]
    assert not any(path.is_symlink() for path in output.iterdir())
    assert leftovers(volume) == ["tiny"]


def test_fetch_again_does_nothing(hub: FakeHub, tmp_path: Path) -> None:
    output = materialize("acme/tiny", tmp_path / "volume" / "tiny")
    num_requests, inode = len(hub.requests), output.stat().st_ino
    assert materialize("acme/tiny", output) == output
    assert len(hub.requests) == num_requests
    assert output.stat().st_ino == inode


def test_fetch_makes_a_damaged_folder_anew(hub: FakeHub, tmp_path: Path) -> None:
    output = materialize("acme/tiny", tmp_path / "volume" / "tiny")
    (output / "model.safetensors").write_bytes(b"")
    materialize("acme/tiny", output)
    assert model_files(output) == hub.repositories["acme/tiny"]


def test_fetch_copies_a_local_folder(tmp_path: Path) -> None:
    source = make_model(tmp_path / "source")
    output = materialize(str(source), tmp_path / "volume" / "tiny")
    assert model_files(output) == model_files(source)
    assert (output / "config.json").stat().st_ino != (source / "config.json").stat().st_ino


def test_fetch_takes_along_how_a_model_pools(tmp_path: Path) -> None:
    source = make_model(tmp_path / "source")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "notes").mkdir()
    folder = materialize(str(source), tmp_path / "out")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"1_Pooling"}
    assert (folder / "1_Pooling" / "config.json").read_text() == "{}"


def test_a_failed_fetch_leaves_no_model_and_continues_later(hub: FakeHub, tmp_path: Path) -> None:
    output = tmp_path / "volume" / "tiny"
    hub.fault("/storage/", cut_after=500)
    hub.fault("/storage/", status=503, times=hub_download.MAX_TRIES)
    with pytest.raises(ModelFilesError, match="answered 503"):
        materialize("acme/tiny", output)
    assert not output.exists()
    materialize("acme/tiny", output)
    assert hub.asked("/storage/")[-1].range == "bytes=500-"
    assert model_files(output) == hub.repositories["acme/tiny"]


def test_two_fetches_at_once_do_not_clash(hub: FakeHub, tmp_path: Path) -> None:
    output, done = tmp_path / "volume" / "tiny", []
    threads = [threading.Thread(target=lambda: done.append(materialize("acme/tiny", output))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [output] * 3
    assert len(hub.asked("/storage/")) == 1
    assert model_files(output) == hub.repositories["acme/tiny"]


def test_a_folder_of_something_else_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear")
    with pytest.raises(ModelFilesError, match="not empty and was not made by blade_llm_fetch"):
        materialize("acme/tiny", foreign)
    output = materialize("acme/tiny", tmp_path / "tiny")
    with pytest.raises(ModelFilesError, match="holds acme/tiny, not acme/other"):
        materialize("acme/other", output)
    assert (foreign / "letter.txt").read_text() == "dear"


def test_a_volume_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = make_model(tmp_path / "source")
    with pytest.raises(ModelFilesError, match="give a folder inside a writable volume"):
        materialize(str(source), tmp_path / "file" / "tiny")


def test_the_folder_goes_to_stdout_and_the_result_to_the_termination_log(
    tmp_path: Path, no_termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_model(tmp_path / "source")
    assert fetch.main(["--model", str(source)]) == 0
    assert capsys.readouterr().out == f"{source}\n"
    result = json.loads(no_termination_log.read_bytes())
    assert result["ready"] is True
    assert result["folder"] == str(source)
    assert result["files"] == 4
    assert result["bytes"] == sum(path.stat().st_size for path in source.iterdir())


def test_a_draft_model_is_fetched_into_the_same_cache_and_counts(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_termination_log: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub.add("acme/small", make_model(tmp_path / "other"))
    arguments = ["--model", "hf://acme/tiny", "--draft.model", "hf://acme/small@main"]
    assert fetch.main(arguments) == 0
    result = json.loads(no_termination_log.read_bytes())
    both = [data for name in ("acme/tiny", "acme/small") for data in hub.repositories[name].values()]
    assert (result["model"], result["files"], result["bytes"]) == ("hf://acme/tiny", len(both), sum(map(len, both)))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("hf://acme/small@main").is_dir()


def test_a_draft_model_that_is_not_there_is_named(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_termination_log: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert fetch.main(["--model", "hf://acme/tiny", "--draft.model", "hf://acme/none"]) == 1
    assert json.loads(no_termination_log.read_bytes())["message"].startswith("--draft.model hf://acme/none: ")


def test_a_failure_exits_1_and_says_why_in_both(no_termination_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["--model", "/no/such"]) == 1
    assert "/no/such does not exist" in capsys.readouterr().err
    result = json.loads(no_termination_log.read_bytes())
    assert result["ready"] is False
    assert "/no/such does not exist" in result["message"]


def test_the_result_stays_small(no_termination_log: Path) -> None:
    assert fetch.main(["--model", "/" + "\N{SNOWMAN}" * 5000]) == 1
    data = no_termination_log.read_bytes()
    assert len(data) <= 4096
    assert json.loads(data)["ready"] is False


def test_a_mistyped_flag_names_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        fetch.main(["--model", "x", "--output_dri", "y"])
    assert exit.value.code == 2
    assert "unknown flag --output_dri; did you mean --output_dir?" in capsys.readouterr().err
