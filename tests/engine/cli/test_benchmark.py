"""``blade_llm_benchmark`` as people run it: what it prints and writes, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from asyncio import StreamWriter as Writer
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.fake_openai import (
    FakeOpenAI,
    ReceivedRequest,
    Script,
    delta,
    respond,
    send_chunk,
    send_error,
    send_head,
)

from blade_llm.benchmark.report.charts import Chart, Series
from blade_llm.benchmark.report.svg import draw, ticks
from blade_llm.cli.benchmark import main

Serve = Callable[[Script], FakeOpenAI]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers in a thread of their own: the command has its own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    servers = contextlib.AsyncExitStack()

    def start(script: Script) -> FakeOpenAI:
        return asyncio.run_coroutine_threadsafe(servers.enter_async_context(FakeOpenAI(script)), loop).result(30)

    yield start
    asyncio.run_coroutine_threadsafe(servers.aclose(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def every(count: int, status: int) -> Script:
    """Every ``count``-th request is refused."""
    requests_before = 0

    async def script(request: ReceivedRequest, writer: Writer) -> None:
        nonlocal requests_before
        requests_before += request.body["max_tokens"] > 1
        if request.body["max_tokens"] > 1 and requests_before % count == 0:
            await send_error(writer, status, "slow down, please")
        else:
            await respond(request, writer)

    return script


def test_closed_loop(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(respond)
    output, plot = tmp_path / "results.json", tmp_path / "plot.html"
    flags = f"--base_url {server.url} --concurrency 3 --num_requests 20 --input_len 50 --output_len 6 --slo ttft=60s"
    assert main([*flags.split(), "--output", str(output), "--plot", str(plot)]) == 0

    shown = capsys.readouterr().out
    assert "closed loop, 3 at a time, 20 requests, after 3 to warm up" in shown
    assert "20 succeeded, 0 failed" in shown
    assert "by the server (usage)" in shown
    assert "100.0 % kept ttft <= 60000 ms" in shown
    for latency in ("TTFT", "TPOT", "ITL", "E2E"):
        assert re.search(rf"^  {latency}( +[\d.,]+){{6}}$", shown, re.MULTILINE), latency

    found = json.loads(output.read_bytes())
    load = found["load"]
    assert (load["succeeded"], load["output_tokens"], len(load["requests"])) == (20, 120, 20)
    assert load["settings"]["model"] == "fake"
    assert load["ttft"]["count"] == 20
    assert load["itl"]["count"] == 100
    assert load["input_tokens"] == pytest.approx(20 * 50, rel=0.1)
    assert found["rates"] == []
    assert len(server.requests) == 2 + 3 + 20
    _check_page(plot.read_text(encoding="utf-8"), charts=5)


def test_open_loop_at_the_completions_endpoint(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(respond)
    flags = "--endpoint completions --request_rate 200 --burstiness 0.5 --num_requests 15 --warmup 0 --output_len 4"
    assert main(["--base_url", f"{server.url}/v1", *flags.split()]) == 0
    shown = capsys.readouterr().out
    assert "open loop, arrivals of burstiness 0.5, 200 requests/s, 15 requests\n" in shown
    assert "15 succeeded" in shown
    assert {request.path for request in server.requests} == {"/v1/completions"}
    assert len(server.requests) == 2 + 15


def test_errors_are_shown_by_kind(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(every(4, 429))
    flags = f"--base_url {server.url} --num_requests 20 --warmup 0 --input_len 10 --output_len 4"
    assert main(flags.split()) == 0
    shown = capsys.readouterr().out
    assert "15 succeeded, 5 failed" in shown
    assert re.search(r"^ +5  HTTP 429  slow down, please$", shown, re.MULTILINE)


def test_no_success_is_a_failure(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(every(1, 503))
    assert main(f"--base_url {server.url} --num_requests 5 --input_len 10 --output_len 4".split()) == 1
    assert "0 succeeded, 5 failed" in capsys.readouterr().out


def test_several_tokens_in_an_event_are_reported(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        count = request.body["max_tokens"]
        await send_head(writer)
        for _ in range(count // 4):
            await send_chunk(writer, delta("four tokens at once"))
        counts = {"prompt_tokens": 20, "completion_tokens": count}
        await send_chunk(writer, delta("", "length", usage=counts) + b"data: [DONE]\n\n")
        await send_chunk(writer, b"")

    server = serve(script)
    assert main(f"--base_url {server.url} --num_requests 4 --input_len 10 --output_len 40".split()) == 0
    shown = capsys.readouterr().out
    assert "tokens out  160 =" in shown
    assert "an event carries 4.00 tokens" in shown


def test_the_highest_rate(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server refuses those who come while it has two others: at 1000/s nearly all, at 2/s hardly any."""
    now = 0

    async def script(request: ReceivedRequest, writer: Writer) -> None:
        nonlocal now
        if request.body["max_tokens"] == 1:
            await respond(request, writer)
            return
        if now >= 2:
            await send_error(writer, 429, "full")
            return
        now += 1
        await asyncio.sleep(0.05)
        now -= 1
        await respond(request, writer)

    server = serve(script)
    output, plot = tmp_path / "results.json", tmp_path / "plot.html"
    flags = (
        f"--base_url {server.url} --find_rate --slo e2e=60s --attainment 0.5 --request_rate 1000 --probe_requests 30 "
        f"--probe_seconds 0.01 --rate_precision 0.9 --input_len 10 --output_len 2 --output {output} --plot {plot}"
    )
    assert main(flags.split()) == 0
    shown = capsys.readouterr().out
    found = json.loads(output.read_bytes())
    assert 5 < found["highest_rate"] < 500
    assert f"{found['highest_rate']:.2f} requests/s" in shown
    assert len(found["rates"]) == len(re.findall(r"(passes|fails)", shown)) >= 3
    assert [probe["passed"] for probe in found["rates"] if probe["rate"] == found["highest_rate"]] == [True]
    _check_page(plot.read_text(encoding="utf-8"), charts=7)


def test_no_rate(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(every(1, 503))
    probes = "--find_rate --slo e2e=60s --request_rate 100000 --probe_requests 5 --probe_seconds 0.0001"
    assert main(f"--base_url {server.url} {probes} --input_len 10 --warmup 0".split()) == 1
    shown = capsys.readouterr().out
    assert "No rate tried keeps e2e <= 60000 ms" in shown
    assert "HTTP 503" in shown


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base_url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["--base_url", "http://127.0.0.1:1", "--model", "m"]) == 1
    assert "cannot connect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--slo speed=3s", "ttft=200ms"),
        ("--find_rate", "needs --slo"),
        ("--concurrency 2 --request_rate 3", "give one of them"),
        ("--plot plot.pdf", ".html"),
        ("--extra_body [1]", "no JSON object"),
        ("--request_rate 0", "above 0"),
        ("--concurency 2", "--concurrency"),
    ],
)
def test_wrong_flags(flags: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_shows_what_there_is(serve: Serve, tmp_path: Path) -> None:
    server = serve(respond)
    output = tmp_path / "results.json"
    flags = f"--base_url {server.url} --request_rate 50 --num_requests 100000 --input_len 10 --output_len 4"
    command = [sys.executable, "-m", "blade_llm.cli.benchmark", *flags.split(), "--output", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        while len(server.requests) < 20:
            assert process.poll() is None
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Stopped by Ctrl-C; so far:" in shown
    found: dict[str, Any] = json.loads(output.read_bytes())
    assert found["stopped"]
    assert 5 < found["load"]["succeeded"] < 1000


def test_png_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["--plot", "plot.png"])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_it_starts_without_torch_or_the_engine() -> None:
    loaded = "import sys, blade_llm.cli.benchmark; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "blade_llm.benchmark.session" in modules
    heavy = ("torch", "transformers", "numpy", "fastapi", "blade_llm.engine", "blade_llm.api", "blade_llm.runner")
    assert [name for name in modules if name.startswith(heavy)] == []


def test_axes_begin_at_zero_and_cover_everything() -> None:
    for largest in (0.003, 1.0, 7.3, 99.0, 100.0, 12345.0):
        marks = ticks(largest)
        assert marks[0] == 0
        assert marks[-2] < largest <= marks[-1] * (1 + 1e-9)
        assert 4 <= len(marks) <= 7
    assert ticks(0.0)[-1] == 1.0


def test_points_lie_where_their_values_are() -> None:
    svg = draw(Chart("<t>", "x", "y", [Series("s", [(0, 0), (5, 50), (10, 100)])]))
    assert "&lt;t&gt;" in svg
    line = re.search(r'<polyline class="s0" points="([^"]+)"', svg)
    assert line is not None
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, pair.split(","))) for pair in line[1].split())
    assert (x1 - x0, y1 - y0) == pytest.approx((x2 - x1, y2 - y1), abs=0.2)
    assert x2 > x0
    assert y2 < y0


def _check_page(page: str, charts: int) -> None:
    body = page.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "")
    root = ElementTree.fromstring(body)
    svgs = root.findall(".//svg")
    assert len(svgs) == charts
    assert not any(tag in page for tag in ("<script", "http://www", "src=", "@import", "<link"))
    for svg in svgs:
        assert svg.findall("polyline") or svg.findall("circle"), svg.attrib
