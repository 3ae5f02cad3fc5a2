"""AIPerf: `aiperf profile` against the URL, a few streamed requests; what its JSON report says is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from case import MODEL, ROOT_URL, Client

CLIENT = Client("AIPerf", "aiperf")
FOLDER = Path(__file__).parents[4] / "examples" / "demo_model" / "model"
REQUESTS = 6
PROMPT, OUTPUT = 32, 64
"""Tokens of each."""


def run(endpoint: str, *flags: str) -> dict[str, Any]:
    """Profile an endpoint with synthetic prompts; the report. Its processes take longer to start than to measure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(Path(sys.executable).parent / "aiperf"), "profile", "--model", MODEL, "--url", ROOT_URL),
            *("--endpoint-type", endpoint, "--tokenizer", str(FOLDER)),
            *("--isl", str(PROMPT), "--request-count", str(REQUESTS), "--concurrency", "2", "--random-seed", "1"),
            *("--artifact-dir", folder, "--ui-type", "none", "--no-gpu-telemetry"),
            *("--workers-max", "1", "--record-processors", "1"),  # enough for so few requests
            *flags,
        ]
        # With HF_HUB_OFFLINE it takes no local folder for a tokenizer, so the hub is an address where nobody is.
        environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "AIPERF_LOG_LEVEL": "WARNING"}
        environment.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        report: dict[str, Any] = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == REQUESTS
    assert report["error_summary"] == []
    return report


@CLIENT.case("chat, streaming")
def chat() -> str:
    generated = ("--streaming", "--osl", str(OUTPUT), "--extra-inputs", "ignore_eos:true")
    report = run("chat", *generated, "--goodput", "request_latency:600000")
    for name, least, most in (
        ("output_sequence_length", 1, OUTPUT),  # of the text, by its own tokenizer
        ("usage_completion_tokens", OUTPUT, OUTPUT),  # as the server says
        ("input_sequence_length", PROMPT, PROMPT),
        ("usage_prompt_tokens", PROMPT, PROMPT + 40),  # with the chat template
    ):
        assert least <= report[name]["min"] <= report[name]["max"] <= most, (name, report[name])
    assert report["good_request_count"]["avg"] == REQUESTS
    assert report["time_to_first_token"]["min"] > 0
    assert report["inter_token_latency"]["count"] == REQUESTS
    return f"{REQUESTS} requests, {report['usage_prompt_tokens']['max']:g} tokens in, {OUTPUT} out each"


if __name__ == "__main__":
    CLIENT.main()
