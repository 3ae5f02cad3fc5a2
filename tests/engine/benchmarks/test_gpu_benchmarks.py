"""What `make gpu` runs, as the dry run it is without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from benchmarks.figures import Figure
from benchmarks.gpu import machine

ROOT = Path(__file__).parents[3]
EXPECTED = {
    "kernels": ["attention_qwen2.5-7b_mixed_error", "top_k_top_p_2_time", "experts_4_time", "copy_bandwidth"],
    "ranks": ["failed_runs_of_tests 0 runs"],
    "engine": [
        "tokens_right 1 share",
        "decode_b2_of_roofline",
        "prefill_32_of_peak",
        "mixed_6_speedup",
        "mixed_10_launched",
        "logprob_error_ratio 1",
    ],
    "lora": [
        "lora_4_of_2_error",
        "lora_tokens_right 1 share",
        "decode_b2_lora_none_over_base",
        "decode_b2_lora_2_over",
    ],
    "bench": ["tokens_right 1 share", "ttft_ratio", "tbt_ratio", "qps_ratio"],
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")
@pytest.mark.parametrize(
    "part",
    [
        *("kernels", "engine"),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("ranks", "lora")),
        pytest.param("bench", marks=pytest.mark.soak, id="bench-with-transformers"),
    ],
)
def test_dry_run(part: str) -> None:
    if part in ("kernels", "ranks", "lora") and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    written = _results()
    environment = {**os.environ, "PART": part, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in EXPECTED[part]:
        assert f"figure {name}" in done.stdout
    assert _results() == written


@pytest.mark.skipif(torch.cuda.is_available(), reason="writes no file only on machines without a GPU")
def test_one_failure_takes_no_other_figure_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> Iterator[Figure]:
        yield Figure("before", 1.0, "s")
        raise RuntimeError("a kernel was wrong")

    results = machine.Results("part")
    assert not results.measure("broken", breaks)
    assert results.measure("sound", lambda value: [Figure("after", value, "s")], 2.0)
    monkeypatch.setattr(machine, "SECONDS", 0.0)
    assert not results.measure("late", breaks)
    assert [figure.name for figure in results.figures] == ["before", "after"]
    assert results.finish() == 1
    printed = capsys.readouterr().err
    assert "a kernel was wrong" in printed
    assert "failed: broken\n" in printed
    assert "skipped, GPU_SECONDS is over: late\n" in printed


def test_tests_of_kernels_can_be_collected_without_the_server_s_clients() -> None:
    """A GPU machine has none of these packages."""
    collect = (
        "import sys, pytest; sys.modules.update(openai=None, kopf=None, kubernetes=None); "
        "sys.exit(pytest.main(['--co', '-q', '-p', 'no:cacheprovider', 'tests/engine/kernels/test_triton_gumbel.py']))"
    )
    command = [sys.executable, "-c", collect]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _results() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (ROOT / "benchmarks" / "results").glob("gpu_*.json")}
