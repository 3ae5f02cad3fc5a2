"""GuideLLM: `guidellm run` against the URL, a few requests of each kind it sends; what its JSON report says is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from case import MODEL, ROOT_URL, Client

CLIENT = Client("GuideLLM", "guidellm")
FOLDER = Path(__file__).parents[4] / "examples" / "demo_model" / "model"
REQUESTS = 6
PROMPT, OUTPUT = 32, 64
"""Tokens of each."""
TEMPLATE = 40
"""At most so many more for the chat template."""


def run(request_format: str) -> dict[str, Any]:
    """Benchmark a route with synthetic prompts; the one benchmark of the report."""
    backend = {"kind": "openai_http", "target": ROOT_URL, "model": MODEL, "request_format": request_format}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "guidellm", "run", "--disable-console"),
            *("--backend", ",".join(f"{name}={value}" for name, value in backend.items())),
            *("--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--tokenizer", f"kind=huggingface_auto,model={FOLDER}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"),
            *("--output", f"kind=json,path={report}"),
        ]
        # The tokenizer is a local folder, and one process is enough for so few requests: both are documented settings.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr[-2000:]
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    errors = [request["info"]["error"] for request in benchmark["requests"]["errored"]]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), errors
    return benchmark  # type: ignore[no-any-return]


def check(benchmark: dict[str, Any]) -> str:
    """Every request has its tokens, as the server's usage says; a prompt has those of the chat template, too."""
    metrics = benchmark["metrics"]
    assert tokens(metrics["output_token_count"]) == (OUTPUT, OUTPUT)
    least, most = tokens(metrics["prompt_token_count"])
    assert PROMPT <= least <= most <= PROMPT + TEMPLATE
    assert all(request["output"] for request in benchmark["requests"]["successful"])
    return f"{REQUESTS} requests, {least:g} tokens in, {OUTPUT} out each"


def tokens(metric: dict[str, Any]) -> tuple[float, float]:
    """The least and the most of a distribution."""
    return metric["successful"]["min"], metric["successful"]["max"]


@CLIENT.case("chat, streaming")
def chat() -> str:
    benchmark = run("/v1/chat/completions")
    shown = check(benchmark)
    first, iterations = (
        benchmark["metrics"][name] for name in ("time_to_first_token_ms", "request_streaming_iterations_count")
    )
    assert tokens(first)[0] > 0
    assert tokens(iterations)[0] > 1
    return shown


@CLIENT.case("responses, streaming")
def responses() -> str:
    return check(run("/v1/responses"))


if __name__ == "__main__":
    CLIENT.main()
