"""What quantising costs: minutes and memory of GPTQ on a model of Qwen2.5-0.5B's shape with random weights.

``python -m benchmarks.quantization.cost``; ``QUICK=1``: four of its layers, whose minutes are not judged.
The interpreter with its libraries takes memory before any weight is read; it is measured by itself and taken off.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers import peers
from benchmarks.peers.model import random_model
from benchmarks.peers.shapes import QWEN2, Shape
from benchmarks.quantization.__main__ import calibration_lines
from benchmarks.quantization.corpus import CorpusError, cache_folder, load_corpus
from benchmarks.quantization.methods import GROUPS

SHAPE: Final = Shape("qwen2-0.5b-4-layers", QWEN2.config | {"num_hidden_layers": 4}) if QUICK else QWEN2
MOST_MINUTES: Final = 15.0
_LAUNCHER: Final = """
import os, sys
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(process, 0)
print(usage.ru_maxrss)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
"""A small program between: Linux counts the memory of the one that starts a program as the program's."""


@dataclass(frozen=True)
class Run:
    """One run of a program."""

    minutes: float
    peak_rss: int
    """Bytes."""


def run(command: Sequence[str]) -> Run:
    """Run a program to its end. Raises ``CalledProcessError``; its output goes to standard error."""
    started = time.monotonic()
    launcher = [sys.executable, "-S", "-c", _LAUNCHER, *command]
    done = subprocess.run(launcher, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command)
    return Run((time.monotonic() - started) / 60, int(done.stdout) * 1024)


def figures(weights: int, config: Mapping[str, Any], made: Run, interpreter: Run) -> list[Figure]:
    """Of a run over a model with tied embeddings, whose file has ``weights`` bytes in bf16."""
    layer = (weights - 2 * config["vocab_size"] * config["hidden_size"]) / config["num_hidden_layers"]
    used = made.peak_rss - interpreter.peak_rss
    return [
        Figure("gptq-minutes", made.minutes, "min", *(() if QUICK else ("<=", MOST_MINUTES))),
        Figure("gptq-peak-rss", made.peak_rss / 1e9, "GB"),
        Figure("interpreter-peak-rss", interpreter.peak_rss / 1e9, "GB"),
        Figure("gptq-memory", used / 1e9, "GB", "<=", (weights + 2 * layer) / 1e9),
    ]


def main() -> int:
    try:
        corpus = load_corpus(cache_folder())
    except CorpusError as error:
        print(error, file=sys.stderr)
        return 1
    model = random_model(peers.CACHE / "models" / SHAPE.name, SHAPE)
    with tempfile.TemporaryDirectory() as name:
        texts = Path(name) / "calibration.jsonl"
        texts.write_text("".join(calibration_lines(corpus.calibration)), encoding="utf-8")
        program = [sys.executable, "-m", "blade_llm.cli.quantize"]
        interpreter = run([sys.executable, "-c", "import blade_llm.cli.quantize, blade_llm.quantize.run, transformers"])
        flags = ["--quant_algo", "gptq", "--bit", "4", *GROUPS, "--calib_data_file", str(texts)]
        made = run([*program, "--model", str(model), "--output_dir", f"{name}/out", *flags])
    weights = (model / "model.safetensors").stat().st_size
    return report("quantization_cost", figures(weights, SHAPE.config, made, interpreter))


if __name__ == "__main__":
    raise SystemExit(main())
