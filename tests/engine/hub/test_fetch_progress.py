"""Progress of a download, queried over HTTP while it runs."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest
from hub_support.fake_hub import FakeHub, running_hub
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.cli import fetch
from blade_llm.cli.progress.fetch import SETTLE_S, WINDOW_S, Meter, serve_progress
from blade_llm.hub.model import Progress
from blade_protocol import headers, paths
from blade_protocol.fetch import FetchProgress

HALF = 4000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("BLADE_TERMINATION_LOG", str(tmp_path / "termination-log"))
        for name in ("BLADE_INTERNAL_PORT", "BLADE_INTERNAL_TOKEN_FILE", "BLADE_HOST", "HF_HOME", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        hub.add("acme/tiny", make_model(tmp_path / "source"))
        yield hub


def free_port() -> int:
    """Below the ports that the system gives to others: none of them can take it before it is used."""
    while True:
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", random.randrange(20_000, 30_000)))
                return int(probe.getsockname()[1])


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    number = free_port()
    monkeypatch.setenv("BLADE_INTERNAL_PORT", str(number))
    return number


def get_progress(port: int, token: str = "") -> httpx.Response | None:
    try:
        with httpx.Client(trust_env=False) as client:
            return client.get(f"http://127.0.0.1:{port}{paths.INTERNAL_FETCH}", headers={headers.INTERNAL_TOKEN: token})
    except httpx.TransportError:
        return None


def until_half(port: int, token: str = "") -> FetchProgress:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        response = get_progress(port, token)
        if response is not None and response.status_code == 200:
            progress = msgspec.json.decode(response.content, type=FetchProgress)
            if progress.files and progress.files_done == progress.files - 1 and progress.bytes_done >= HALF:
                return progress
        time.sleep(0.02)
    raise AssertionError("the download never reported that it was half way")


def test_progress_is_served_while_the_download_runs(hub: FakeHub, port: int, tmp_path: Path) -> None:
    sizes = {name: len(data) for name, data in hub.repositories["acme/tiny"].items()}
    hub.fault("/storage/", pause_after=HALF)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fetch.main, ["--model", "hf://acme/tiny"])
        progress = until_half(port)
        assert progress.model == "hf://acme/tiny"
        assert (progress.bytes, progress.files) == (sum(sizes.values()), len(sizes))
        assert progress.bytes_done == progress.bytes - sizes["model.safetensors"] + HALF
        hub.go.set()
        assert running.result() == 0
    assert get_progress(port) is None


def test_what_is_there_already_counts_as_done(hub: FakeHub, port: int, tmp_path: Path) -> None:
    size = sum(len(data) for data in hub.repositories["acme/tiny"].values())
    hub.fault("/storage/", status=404)
    assert fetch.main(["--model", "hf://acme/tiny"]) == 1
    hub.fault("/storage/", pause_after=HALF)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fetch.main, ["--model", "hf://acme/tiny"])
        assert until_half(port).bytes == size
        hub.go.set()
        assert running.result() == 0


def test_the_token_is_required_where_there_is_one(
    hub: FakeHub, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv("BLADE_INTERNAL_TOKEN_FILE", str(token))
    with serve_progress(Meter("m")):
        statuses = [getattr(get_progress(port, given), "status_code", None) for given in ("", "secret")]
        token.write_text("secret\n")
        statuses += [getattr(get_progress(port, given), "status_code", None) for given in ("", "wrong", "secret")]
        token.write_text("")
        statuses.append(getattr(get_progress(port), "status_code", None))
    assert statuses == [401, 401, 401, 401, 200, 401]


def test_pages_in_a_browser_learn_nothing(hub: FakeHub, port: int) -> None:
    with serve_progress(Meter("m")):
        url = f"http://127.0.0.1:{port}{paths.INTERNAL_FETCH}"
        assert httpx.get(url).status_code == 200
        assert httpx.get(url, headers={"origin": "null"}).status_code == 403


def test_nothing_is_served_without_a_port_and_a_bad_one_stops_no_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_progress(Meter("m")) as served:
        assert served is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("BLADE_INTERNAL_PORT", str(taken.getsockname()[1]))
        assert fetch.main(["--model", "hf://acme/tiny"]) == 0
        assert "cannot tell the progress on port" in capsys.readouterr().err
    for odd in ("http", "99999"):
        monkeypatch.setenv("BLADE_INTERNAL_PORT", odd)
        assert fetch.main(["--model", "hf://acme/tiny"]) == 0


def test_other_paths_are_not_there(port: int) -> None:
    with serve_progress(Meter("m")), httpx.Client(trust_env=False) as client:
        assert client.get(f"http://127.0.0.1:{port}/internal/state").status_code == 404


def test_a_silent_client_keeps_nobody_waiting(port: int) -> None:
    with serve_progress(Meter("m")), socket.create_connection(("127.0.0.1", port)):
        response = get_progress(port)
        assert response is not None
        assert response.status_code == 200


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(done: int) -> Progress:
    return Progress(done, 1000, "model.safetensors", 1, 2)


def test_speed_is_what_came_lately_and_not_what_was_there() -> None:
    clock = Clock()
    meter = Meter("m", clock)
    assert meter.read() == FetchProgress(model="m")
    meter(progress(10))
    clock.now += SETTLE_S / 2
    meter(progress(500))  # a partial file of an earlier run
    for _ in range(10):
        clock.now += 1
        meter(progress(int(500 + 10 * (clock.now - 100 - SETTLE_S / 2))))
    assert meter.read().bytes_per_second == 10
    clock.now += WINDOW_S
    assert meter.read().bytes_per_second < 10
    clock.now += WINDOW_S
    assert meter.read() == FetchProgress(model="m", files=2, files_done=1, bytes=1000, bytes_done=600)


def test_thrown_away_bytes_are_no_negative_speed() -> None:
    clock = Clock()
    meter = Meter("m", clock)
    meter(progress(500))
    clock.now += 2
    meter(progress(0))
    assert meter.read().bytes_per_second == 0


def test_a_second_model_adds_to_the_first() -> None:
    clock = Clock()
    meter = Meter("m", clock)
    meter.next_model()  # nothing of the first had to be downloaded
    meter(progress(1000))
    meter.next_model()
    clock.now += 2
    meter(Progress(300, 500, "model.safetensors", 0, 3))
    read = meter.read()
    assert (read.bytes_done, read.bytes, read.files_done, read.files) == (1300, 1500, 2, 5)
    assert read.bytes_per_second == 150
