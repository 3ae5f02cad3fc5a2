"""What quantising costs: minutes and memory of GPTQ on a model of Qwen2.5-0.5B's shape with random weights.

``python -m benchmarks.quantization.cost``; ``QUICK=1``: four of its layers, whose minutes are not judged.
The interpreter with its libraries takes memory before any weight is read; it is measured by itself and taken off.
What is judged is anonymous memory: pages of mapped files are the system's, which takes them back when it needs them.
"""

from __future__ import annotations

import os
import re
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
_SECONDS: Final = 0.02
"""Between two looks at the memory."""
_STATUS: Final = re.compile(r"^(RssAnon|VmHWM):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One run of a program."""

    minutes: float
    cpu_minutes: float
    """Of all its threads."""
    anonymous: int
    """Bytes of memory that is in no file, at most, as looked at every :data:`_SECONDS`."""
    peak_rss: int
    """Bytes, with pages of mapped files, the checkpoint's above all, which the system can take back at any time."""


def run(command: Sequence[str]) -> Run:
    """Run a program to its end. Raises ``CalledProcessError``; its output goes to standard error."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=sys.stderr.fileno())
    anonymous = peak_rss = 0
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        found = dict(_STATUS.findall(Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")))
        anonymous = max(anonymous, int(found.get("RssAnon", 0)) * 1024)  # nothing of one that has just ended
        peak_rss = max(peak_rss, int(found.get("VmHWM", 0)) * 1024)
        time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run((time.monotonic() - started) / 60, (usage.ru_utime + usage.ru_stime) / 60, anonymous, peak_rss)


def figures(weights: int, config: Mapping[str, Any], made: Run, interpreter: Run) -> list[Figure]:
    """Of a run over a model with tied embeddings, whose file has ``weights`` bytes in bf16.

    Memory may be that of the whole model and two layers, of the quick run's shape with all of its layers, too: what is
    held does not depend on their number.
    """
    layer = (weights - 2 * config["vocab_size"] * config["hidden_size"]) / config["num_hidden_layers"]
    whole = weights + layer * (QWEN2.config["num_hidden_layers"] - config["num_hidden_layers"])
    used = made.anonymous - interpreter.anonymous
    return [
        Figure("gptq-minutes", made.minutes, "min", *(() if QUICK else ("<=", MOST_MINUTES))),
        Figure("gptq-cpu-minutes", made.cpu_minutes, "min"),
        Figure("gptq-peak-rss", made.peak_rss / 1e9, "GB"),
        Figure("gptq-peak-anonymous", made.anonymous / 1e9, "GB"),
        Figure("interpreter-peak-anonymous", interpreter.anonymous / 1e9, "GB"),
        Figure("gptq-memory", used / 1e9, "GB", "<=", (whole + 2 * layer) / 1e9),
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
