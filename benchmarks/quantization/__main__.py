"""``make bench-quant``: perplexity of each way to quantise, as served, and what must hold of them.

Two models: the one of :mod:`~benchmarks.quantization.train`, and the same function with outlier channels
(:mod:`~benchmarks.quantization.outliers`). Checkpoints are made by the command, one after another, and scored by a
process of the engine each. ``QUICK=1``: the model with outliers and a quarter of the text. ``ROWS=bf16,gptq-4``: some
rows; bounds of others are then missed. ``--only trained``: one table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from benchmarks.figures import QUICK, Figure, report
from benchmarks.quantization import perplexity
from benchmarks.quantization.corpus import Corpus, CorpusError, cache_folder, load_corpus
from benchmarks.quantization.methods import METHODS, Method
from benchmarks.quantization.outliers import with_outliers
from benchmarks.quantization.table import BOUNDS, figures_of, table, verdicts
from benchmarks.quantization.train import WINDOW, encode, trained, windows

SCORED: Final = 64 if QUICK else 256
"""Windows."""
CALIBRATION_TEXTS: Final = 128
CALIBRATION_CHARACTERS: Final = 800
"""Of each: about a window."""
REFUSED: Final = 2
"""Exit code of a program that does not know, or does not have yet, what it is told."""


class Bench:
    """The texts, a folder to work in, and what runs the two programs."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, work: Path) -> None:
        self.work = work
        self.windows, self.texts = work / "held_out.pt", work / "calibration.jsonl"
        perplexity.store(windows(encode(tokenizer, corpus.held_out))[:SCORED].clone(), self.windows)
        self.texts.write_text("".join(calibration_lines(corpus.calibration)), encoding="utf-8")

    def rows(self, model: Path, methods: Sequence[Method]) -> dict[str, float | None]:
        """Perplexity of each method; None where a flag of its is not there."""
        found: dict[str, float | None] = {}
        for method in methods:
            started = time.monotonic()
            found[method.name] = value = self._row(model, method)
            shown = "not available" if value is None else f"{value:.4f}"
            print(f"{method.name}: {shown} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)
        return found

    def _row(self, model: Path, method: Method) -> float | None:
        folder = model
        if method.flags is not None:
            folder = self.work / "checkpoint"
            shutil.rmtree(folder, ignore_errors=True)
            flags = [*method.flags, *(("--calib_data_file", str(self.texts)) if method.calibrated else ())]
            command = ["--model", str(model), "--output_dir", str(folder), *flags]
            if _run("blade_llm.cli.quantize", *command) is None:
                return None
        engine = json.dumps(dict(method.engine))
        said = _run("benchmarks.quantization.perplexity", str(folder), str(self.windows), "--engine", engine)
        return None if said is None else float(json.loads(said.splitlines()[-1])["perplexity"])


def calibration_lines(texts: Sequence[str]) -> list[str]:
    """JSON lines: the beginnings of documents, then what follows these, until there are enough."""
    pieces = [
        text[first : first + CALIBRATION_CHARACTERS]
        for first in range(0, max(map(len, texts), default=0), CALIBRATION_CHARACTERS)
        for text in texts
        if len(text) >= first + CALIBRATION_CHARACTERS // 2
    ]
    return [json.dumps({"text": each}) + "\n" for each in pieces[:CALIBRATION_TEXTS]]


def _run(module: str, *arguments: str) -> str | None:
    """What a program prints; None when it refuses its arguments. Raises ``CalledProcessError`` when it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == REFUSED:
        print(f"{module}: {(done.stderr.strip().splitlines() or [''])[-1]}", file=sys.stderr)
        return None
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Perplexity of quantised models, as served.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of corpus and model")
    parser.add_argument(
        "--model", type=Path, help="a folder of the recipe's (--steps) to measure instead of the cache's"
    )
    parser.add_argument("--only", choices=("trained", "outliers"), help="one of the two tables")
    options = parser.parse_args()
    wanted = [each for each in os.environ.get("ROWS", "").split(",") if each]
    methods = [each for each in METHODS if not wanted or each.name in wanted]
    try:
        corpus = load_corpus(options.cache)
    except CorpusError as error:
        print(error, file=sys.stderr)
        return 1
    model = options.model or trained(options.cache, corpus)
    figures: list[Figure] = []
    met = True
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        bench = Bench(corpus, Tokenizer.from_file(str(model / "tokenizer.json")), work)
        with_outliers(model, work / "outliers")
        models = {"trained": model, "outliers": work / "outliers"}
        only = options.only or ("outliers" if QUICK else None)
        for label, folder in models.items() if only is None else [(only, models[only])]:
            perplexities = bench.rows(folder, methods)
            lines, found, holds = verdicts(perplexities, label, BOUNDS)
            print(f"\n{label}, {SCORED} windows of {WINDOW} tokens\n", *table(perplexities), "", *lines, "", sep="\n")
            figures += [*figures_of(perplexities, label), *found]
            met = met and holds
    about = {"torch": str(torch.__version__), "corpus": corpus.digest[:12]}
    code = report("quantization", figures, keep=options.only is not None or bool(wanted), **about)
    return max(code, 0 if met else 1)


if __name__ == "__main__":
    raise SystemExit(main())
