"""GGUF files in parts, and those of a model hub."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from engine_support.gguf_models import Model, read  # noqa: E402
from hub_support.fake_hub import COMMIT, FakeHub, running_hub  # noqa: E402
from huggingface_hub import constants  # noqa: E402

from blade_llm.hub import download as downloads  # noqa: E402
from blade_llm.hub.materialize import materialize  # noqa: E402
from blade_llm.hub.model import HubModel  # noqa: E402
from blade_llm.hub.resolve import parse_model, resolve_model  # noqa: E402
from blade_llm.hub.wanted import wanted_files  # noqa: E402
from blade_llm.models.config import load_model_config  # noqa: E402
from blade_llm.models.errors import ModelFilesError  # noqa: E402
from blade_llm.weights.checkpoint import open_checkpoint  # noqa: E402
from blade_llm.weights.gguf.parts import models_among, parts_of  # noqa: E402

REPO = "acme/tiny-GGUF"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path, "LlamaForCausalLM")


@pytest.fixture
def parts(model: Model, tmp_path: Path) -> list[Path]:
    return model.write_parts(tmp_path / "parts" / "tiny-Q8_0", "Q8_0", 3)


def refused(model: object) -> str:
    with pytest.raises(ModelFilesError) as caught:
        resolve_model(str(model))
    return str(caught.value)


def assert_is(folder: Path, model: Model) -> None:
    found = read(folder)
    assert found.keys() == model.tensors.keys()
    for name, value in found.items():
        assert np.abs(value - model.tensors[name]).max() <= 6e-3 * np.abs(model.tensors[name]).max(), name


def test_parts_are_one_model(model: Model, parts: list[Path]) -> None:
    folder = resolve_model(str(parts[0]))
    assert_is(folder, model)
    assert len(open_checkpoint(folder).files) == 3
    assert load_model_config(folder).decoder == model.config.decoder
    assert resolve_model(str(parts[2])) == folder, "any part may be given"
    assert resolve_model(str(parts[0].parent)) == folder, "all that is in a folder"


def test_a_part_that_changed_makes_another_folder(parts: list[Path]) -> None:
    folder = resolve_model(str(parts[0]))
    parts[1].write_bytes(parts[1].read_bytes())
    assert resolve_model(str(parts[0])) != folder


def test_parts_that_do_not_belong_together_are_named(model: Model, parts: list[Path], tmp_path: Path) -> None:
    whole = parts[1].read_bytes()
    parts[1].unlink()
    message = refused(parts[0])
    assert "tiny-Q8_0-00002-of-00003.gguf, of 3 parts, is missing" in message
    assert refused(parts[0].parent) == message
    parts[1].write_bytes(parts[2].read_bytes())
    assert f"{parts[1]} is not part 2 of 3 inside" in refused(parts[0])
    parts[1].write_bytes(whole[: len(whole) // 2])
    assert f"{parts[1]} is truncated" in refused(parts[0])
    parts[1].write_bytes(whole)
    alone = tmp_path / "renamed.gguf"
    shutil.copy(parts[0], alone)
    assert f"{alone} is one of 3 parts, by its name one of 1" in refused(alone)
    data = bytearray(parts[0].read_bytes())
    place = data.index(b"split.tensors.count") + len("split.tensors.count") + 4
    count = struct.unpack_from("<i", data, place)[0]
    struct.pack_into("<i", data, place, count + 1)
    parts[0].write_bytes(data)
    assert f"hold {count} tensors, not {count + 1}" in refused(parts[0])


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("org/name:Q4_K_M", HubModel("org/name", gguf="Q4_K_M")),
        ("hf://org/name:Q8_0@v1", HubModel("org/name", "v1", gguf="Q8_0")),
        ("org/name/a.b-Q8_0.gguf", HubModel("org/name", gguf="a.b-Q8_0.gguf")),
        ("org/name/Q8_0/a-00001-of-00002.gguf@v1", HubModel("org/name", "v1", gguf="Q8_0/a-00001-of-00002.gguf")),
    ],
)
def test_names_of_files_on_a_hub(text: str, meaning: HubModel) -> None:
    assert parse_model(text) == meaning
    assert parse_model(str(meaning)) == meaning


@pytest.mark.parametrize("name", ["a-00001-of-00000.gguf", "a-00003-of-00002.gguf", "a-00000-of-00002.gguf"])
def test_numbers_that_name_no_part(name: str) -> None:
    assert parts_of(name) == models_among([name]) == [name]


@pytest.mark.parametrize("name", ["../../a-Q8_0.gguf", "/a-Q8_0.gguf", "a/./b-Q8_0.gguf"])
def test_a_hub_that_lists_files_outside_the_model(name: str) -> None:
    with pytest.raises(ModelFilesError, match="outside the model"):
        wanted_files([name], HubModel("org/name", gguf="Q8_0"))
    with pytest.raises(ModelFilesError, match="neither"):
        parse_model("org/name/../../a-Q8_0.gguf")


@pytest.fixture
def hub(model: Model, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(downloads, "_wait", lambda *_: None)
        files = {f"Q8_0/{part.name}": part.read_bytes() for part in parts}
        files["tiny-F16.gguf"] = model.write("F16").read_bytes()
        hub.add(REPO, {**files, "mmproj-tiny-F16.gguf": b"of images", "README.md": b"not needed"})
        yield hub


@pytest.mark.parametrize(
    "name", [f"{REPO}:Q8_0", f"{REPO}:q8_0@{COMMIT}", f"hf://{REPO}/Q8_0/tiny-Q8_0-00001-of-00003.gguf"]
)
def test_a_file_of_a_hub_is_fetched_with_all_its_parts(hub: FakeHub, model: Model, name: str) -> None:
    folder = resolve_model(name)
    assert_is(folder, model)
    assert not hub.asked("F16")
    assert not hub.asked("README")
    before = len(hub.requests)
    assert resolve_model(name) == folder
    assert len(hub.requests) == before, "what is complete in the cache needs no hub"


def test_a_file_beside_one_that_is_cached(hub: FakeHub, model: Model) -> None:
    eight = resolve_model(f"{REPO}:Q8_0")
    sixteen = resolve_model(f"{REPO}:F16")
    assert sixteen != eight
    assert_is(sixteen, model)
    assert resolve_model(f"{REPO}/tiny-F16.gguf") == sixteen


def test_what_is_not_on_the_hub_is_answered_with_what_is(hub: FakeHub) -> None:
    there = "GGUF files there: Q8_0/tiny-Q8_0-00001-of-00003.gguf, tiny-F16.gguf"
    assert there in refused(f"{REPO}:Q4_K_M")
    assert there in refused(f"{REPO}/tiny-Q4_K_M.gguf")
    assert f"name one of its GGUF files, as {REPO}:Q4_K_M or {REPO}/Q8_0/tiny" in refused(REPO)
    hub.repositories[REPO]["other-F16.gguf"] = b""
    several = "several files of that name; GGUF files there: other-F16.gguf, tiny-F16.gguf"
    assert f"{several}; give {REPO}/FILE.gguf" in refused(f"{REPO}:F16")
    del hub.repositories[REPO]["Q8_0/tiny-Q8_0-00002-of-00003.gguf"]
    assert "Q8_0/tiny-Q8_0-00002-of-00003.gguf, of 3 parts, is missing there" in refused(f"{REPO}:Q8_0")


def test_a_file_of_a_hub_as_a_folder_on_a_volume(hub: FakeHub, model: Model, tmp_path: Path) -> None:
    volume = materialize(f"{REPO}:Q8_0", tmp_path / "volume" / "tiny")
    assert not any(file.is_symlink() for file in volume.iterdir())
    assert resolve_model(str(volume)) == volume
    assert_is(volume, model)
