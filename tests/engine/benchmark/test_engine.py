"""The benchmark against the real server with the demo model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server

from blade_llm.cli.benchmark import main
from blade_protocol import metrics

DEMO = Path(__file__).parents[3] / "examples" / "demo_model" / "model"


def _generated(server: ServerProcess) -> int:
    """Tokens, by the server's own books."""
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return sum(
        int(float(line.split()[-1])) for line in lines if line.startswith(f"{metrics.ENGINE_GENERATION_TOKENS}_total")
    )


def test_the_engine_s_own_counts_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--load_format", "auto", "--kv_cache_bytes", "32MiB", "--max_num_seqs", "8")
    output = tmp_path / "results.json"
    with running_server(tmp_path, DEMO, *flags, engine="real") as server:
        load = "--concurrency 4 --num_requests 12 --input_len 40 --output_len 10"
        command = ["--base_url", server.url, *load.split(), "--output", str(output), "--tokenizer", str(DEMO)]
        assert main(command) == 0
        chat = json.loads(output.read_bytes())["load"]
        assert (chat["succeeded"], chat["output_tokens"], chat["input_tokens"]) == (12, 120, 12 * 40)
        assert chat["counted_by"] == "usage"
        # One request of one token found out about the server, four warmed it up. The engine reports ten times a second.
        expected, deadline = 1 + 4 * 10 + 120, time.monotonic() + 10
        while _generated(server) != expected and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _generated(server) == expected

        assert main([*command, "--endpoint", "completions"]) == 0
        text = json.loads(output.read_bytes())["load"]
        assert (text["succeeded"], text["output_tokens"], text["input_tokens"]) == (12, 120, 12 * 40)
        assert text["settings"]["url"].endswith("/v1/completions")

        # Longer than the model can take: refused by the server, reported by the benchmark.
        assert main([*command, "--input_len", "5000", "--num_requests", "2", "--warmup", "0"]) == 1
        assert "HTTP 400" in capsys.readouterr().out
