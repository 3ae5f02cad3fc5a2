"""``README.md`` of a quantised checkpoint: how it was made and is used, and the original's own text below."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from blade_llm.quantize.report import REPORT_NAME, Report

CARD_NAME: Final = "README.md"
_FRONT: Final = re.compile(r"\A---\r?\n(.*?)^---[^\S\n]*\r?$\n?", re.DOTALL | re.MULTILINE)
_KEPT: Final = ("license", "license_name", "license_link", "language", "pipeline_tag", "library_name")
"""Fields of the original's front matter that hold for the quantised model, too."""


def model_card(report: Report, original: str) -> str:
    """The new card. ``original``: the source's, empty without one."""
    front = _FRONT.match(original)
    fields, body = ("", original) if front is None else (front[1], original[front.end() :])
    base = report.model if _is_hub_id(report.model) else ""
    name = base or Path(os.path.abspath(report.model.removeprefix("file://"))).name or "model"  # of "." and "..", too
    # Times stay out: a run that was stopped and continued makes the same file.
    lines = [
        "---",
        *_kept(fields),
        *([f"base_model: {base}", "base_model_relation: quantized"] if base else []),
        "tags:",
        "- compressed-tensors",
        f"- {report.options.format}",
        "---",
        "",
        f"# {name}, quantised",
        "",
        f"Weights of linear layers: {report.options.described}; by `{report.options.algorithm}`.",
        _others(report),
        "",
        "| | |",
        "|---|---|",
        f"| format | compressed-tensors, `{report.options.format}` |",
        f"| quantised | {len(report.tensors)} weights, {report.bits_per_weight:.2f} bits each with their scales |",
        f"| size | {report.bytes_before / 1e9:.3f} GB before, {report.bytes_after / 1e9:.3f} GB now |",
        f"| largest relative error | {report.worst[1].error:.4f}, `{report.worst[0]}` |",
        "",
        f"`{REPORT_NAME}` has the error of each weight. The folder loads as it is:",
        "",
        "```bash",
        "blade_llm_server --model DIR",
        "```",
        "",
        "or with `transformers` where the package `compressed-tensors` is installed.",
    ]
    if body.strip():
        lines += ["", "## The original's model card", "", body.strip()]
    return "\n".join(lines) + "\n"


_QUANTIZED: Final = {
    "output matrix": "the output matrix is quantised as the linear layers are, to the nearest",
    "embeddings": "embeddings have 8 bits, one scale a row",
}


def _others(report: Report) -> str:
    options = report.options
    tables = [name for name, gone in (("output matrix", options.head), ("embeddings", options.embedding)) if not gone]
    if report.changed:
        same, count = " and ".join(tables) or "tensors without scales of linear layers", len(report.changed)
        more = f"; scales went into {count} of the other tensors (norms, biases, routers), which the report lists"
    else:
        same, more = f"{', '.join([*tables, 'norms'])} and routers", ""
    left = 0 if report.calibration is None else len(report.calibration.left)
    some = f", and so are {left} linear layers, for the sake of perplexity" if left else ""
    gone = [_QUANTIZED[name] for name in _QUANTIZED if name not in tables]
    nearest = f" {_sentence('; '.join(gone))}." if gone else ""
    return f"{_sentence(same)} are as in the original{some}{more}.{nearest}"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _kept(fields: str) -> list[str]:
    """The lines of the kept fields; values of several lines are indented or are list entries."""
    kept, keeping = [], False
    for line in fields.splitlines():
        if line[:1] not in (" ", "-", ""):
            keeping = line.partition(":")[0] in _KEPT
        if keeping and line.strip():
            kept.append(line)
    return kept


def _is_hub_id(model: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", model) is not None and not Path(model).exists()
