"""Makes a quantised checkpoint of a model folder: in a folder beside, which is renamed when it is whole."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from blade_llm.models.config import ModelConfig, read_json
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families.registry import family_of
from blade_llm.models.implementation import read_model_config, through_transformers
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.sharding import tensor_parallel_problem
from blade_llm.quantize.config import new_config, require_unquantized
from blade_llm.quantize.journal import JOURNAL_NAME, Done, Journal, read_journal
from blade_llm.quantize.layout import Layout, make_layout
from blade_llm.quantize.model_card import CARD_NAME, model_card
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.plan import Plan, make_plan
from blade_llm.quantize.report import FORMAT, REPORT_NAME, Report, make_report
from blade_llm.quantize.source import TensorReader
from blade_llm.quantize.writer import write_weights
from blade_llm.weights.checkpoint import check_weights
from blade_llm.weights.split.manifest import is_split, read_split, require_size, source_file
from blade_llm.weights.split.space import copy_side_files, require_space, side_files
from blade_llm.weights.split.writer import INDEX_NAME, Progress

logger = logging.getLogger(__name__)

CONFIG_NAME: Final = "config.json"
_BLOCK: Final = 512
"""Bytes of what ``st_blocks`` counts, whatever the file system's own block."""


@dataclass(frozen=True, slots=True)
class Job:
    """A checkpoint to be quantised, read and judged."""

    folder: Path
    model: str
    """What it is called."""
    options: QuantizeOptions
    fields: Mapping[str, Any]
    """Of its ``config.json``."""
    reader: TensorReader
    plan: Plan
    layout: Layout
    fingerprint: str


def prepare(
    folder: Path,
    options: QuantizeOptions,
    *,
    model: str,
    max_shard_bytes: int,
    tensor_parallel_size: int | None = None,
) -> Job:
    """Read what ``folder`` holds and decide what becomes of it; only headers of weight files are read.

    ``model``: its name, for report and model card; ``tensor_parallel_size``: how many ranks it was split for, or are to
    serve the result. Raises :class:`ModelFilesError` for all that cannot be quantised.
    """
    fields = read_json(folder, CONFIG_NAME)
    require_unquantized(folder, fields)
    config = read_model_config(folder)
    if through_transformers(config):
        raise ModelFilesError(
            f"{folder}: {config.architecture} is served through transformers' modules, whose quantised checkpoints the "
            "server does not load; only models with layers of this engine can be quantised"
        )
    if tensor_parallel_size is not None:
        if problem := tensor_parallel_problem(config, tensor_parallel_size):
            raise ModelFilesError(f"{folder}: {problem}")
        if is_split(folder):
            require_size(folder, read_split(folder), tensor_parallel_size)
    reader = TensorReader(folder)
    if any(file.suffix == ".gguf" for file in reader.checkpoint.files):
        raise ModelFilesError(f"{folder}: GGUF files are not quantised here; take the model's safetensors files")
    if problems := check_weights(reader.checkpoint, config):
        raise ModelFilesError(f"{folder}: {'; '.join(problems)}")
    tensors = reader.checkpoint.tensors
    plan = make_plan(config, tensors, options, _head(config, fields))
    layout = make_layout(tensors, plan, options, max_shard_bytes)
    sources = [source_file(file) for file in reader.checkpoint.files]
    parts = (FORMAT, model, options, max_shard_bytes, fields, sources, str(torch.__version__))
    fingerprint = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
    return Job(folder, model, options, fields, reader, plan, layout, fingerprint)


def quantize_model(job: Job, output_dir: Path, start: Callable[[int], Progress]) -> Report:
    """Make ``output_dir`` the quantised checkpoint, there whole or not at all; goes on where an earlier run of the same
    job was stopped.

    ``start``: called with the bytes of the source that are to be worked on, gives what is called with those that were.
    Raises :class:`ModelFilesError` for a folder that is not empty, too little space and weights that cannot be
    quantised, ``OSError``.
    """
    if output_dir.exists() and not (output_dir.is_dir() and not any(output_dir.iterdir())):
        raise ModelFilesError(f"{output_dir} is not empty; delete it or give another --output_dir")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    staging = output_dir.with_name(f".{output_dir.name}.staging")
    if (report := _finished(staging, job)) is None:
        done = _resumable(staging, job)
        there = sum(file.stat().st_blocks * _BLOCK for file in staging.iterdir()) if staging.exists() else 0
        require_space(output_dir.parent, max(0, job.layout.nbytes - there), side_files(job.folder))
        staging.mkdir(exist_ok=True)
        progress = start(sum(unit.source.nbytes for unit in job.layout.units if unit.source.name not in done))
        with Journal(staging / JOURNAL_NAME, job.fingerprint, done.values()) as journal:
            done = write_weights(staging, job.layout, job.reader, job.options, journal, done, progress)
        report = _write_others(staging, job, done)
        (staging / JOURNAL_NAME).unlink()
        _sync(staging)
    staging.replace(output_dir)
    _sync(output_dir.parent)
    return report


def _finished(staging: Path, job: Job) -> Report | None:
    """The report in ``staging`` where that is all that the job is to make: its journal goes last."""
    if (staging / JOURNAL_NAME).exists() or not (staging / REPORT_NAME).is_file():
        return None
    try:
        report = msgspec.json.decode((staging / REPORT_NAME).read_bytes(), type=Report)
    except msgspec.DecodeError:
        return None
    return report if report.fingerprint == job.fingerprint else None


def _resumable(staging: Path, job: Job) -> dict[str, Done]:
    """What is done in ``staging``, which is emptied where it belongs to another job."""
    fingerprint, done = read_journal(staging / JOURNAL_NAME)
    if fingerprint != job.fingerprint:
        if fingerprint is not None:
            logger.warning(
                "%s is of another model, of one that has changed, or of other flags; it is begun anew", staging
            )
        shutil.rmtree(staging, ignore_errors=True)
        return {}
    whole = [
        file for file in job.layout.files
        if (staging / file.name).is_file() and (staging / file.name).stat().st_size == file.nbytes
    ]  # fmt: skip
    names = {unit.source.name for file in whole for unit in file.units}
    return {name: entry for name, entry in done.items() if name in names}


def _write_others(staging: Path, job: Job, done: Mapping[str, Done]) -> Report:
    """All but the weights."""
    report = make_report(job.fingerprint, job.model, job.options, job.layout, done)
    copy_side_files(job.folder, staging)
    original = job.folder / CARD_NAME
    card = model_card(report, original.read_text(encoding="utf-8", errors="replace") if original.is_file() else "")
    written = {
        CONFIG_NAME: new_config(job.fields, job.options, job.plan),
        CARD_NAME: card.encode(),
        REPORT_NAME: msgspec.json.format(msgspec.json.encode(report)) + b"\n",
    }
    if (index := job.layout.index) is not None:
        written[INDEX_NAME] = index
    for name, content in written.items():
        (staging / name).write_bytes(content)
    for file in staging.rglob("*"):
        if file.is_file():
            _sync(file)
    return report


def _head(config: ModelConfig, fields: Mapping[str, Any]) -> str:
    """What the family calls the output matrix's module."""
    return family_of(config.architecture, "generate").names_of(RawConfig(fields)).head


def _sync(path: Path) -> None:
    """Return when the file, or what the folder lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
