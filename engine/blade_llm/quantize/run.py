"""Makes a quantised checkpoint of a model folder: in a staging folder, until it is whole."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from blade_llm.quantize.calibration.images import SampleImages, images_of
from blade_llm.quantize.calibration.mixed import find_left
from blade_llm.quantize.calibration.prompts import encode_texts
from blade_llm.quantize.calibration.run import Calibration
from blade_llm.quantize.calibration.samples import Samples, make_samples
from blade_llm.quantize.calibration.texts import CalibrationText
from blade_llm.quantize.config import CONFIG_NAME, new_config, require_generative, require_unquantized
from blade_llm.quantize.journal import JOURNAL_NAME, Done, Journal, read_journal
from blade_llm.quantize.layout import Layout, make_layout
from blade_llm.quantize.model_card import CARD_NAME, model_card
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.plan import Plan, make_plan
from blade_llm.quantize.report import FORMAT, REPORT_NAME, CalibrationReport, Report, make_report
from blade_llm.quantize.source import TensorReader
from blade_llm.quantize.split_output import Ranks, divide, is_made, put_in_place, ranks_of
from blade_llm.quantize.tied_head import untie
from blade_llm.quantize.writer import write_weights
from blade_llm.runner.startup.host_memory import map_large_allocations
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.text.errors import TokenizerFilesError, UnreadableTextError
from blade_llm.weights.checkpoint import check_weights
from blade_llm.weights.output_folder import sync, write_whole
from blade_llm.weights.split.manifest import is_split, read_split, require_size, source_file
from blade_llm.weights.split.space import copy_side_files, require_space, side_files
from blade_llm.weights.split.writer import INDEX_NAME, Progress

logger = logging.getLogger(__name__)

_OF_QUANTIZED: Final = frozenset({"hf_quant_config.json", "quantize_config.json", "quant_config.json"})
"""Files of other tools that say how a checkpoint is quantised: they would not be true of the new one."""
_LEFT_NAME: Final = f"{JOURNAL_NAME}.left"
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
    max_shard_bytes: int
    fingerprint: str
    config: ModelConfig
    samples: Samples | None
    """Those to calibrate with; None where the algorithm needs none."""
    images: SampleImages | None
    """Those of the samples: the vision tower embeds each once, however many tries there are."""
    left: tuple[str, ...]
    """Linear layers that stay as they are for ``max_perplexity_increase``; the plan has none of them."""
    ranks: Ranks | None
    """Those that the result is divided for; None: it is whole."""
    states_in_files: bool
    """Hidden states of calibration stay in mapped files instead of memory."""


def prepare(
    folder: Path,
    options: QuantizeOptions,
    *,
    model: str,
    max_shard_bytes: int,
    tensor_parallel_size: int | None = None,
    split_output: bool = False,
    texts: Sequence[CalibrationText] = (),
    states_in_files: bool = False,
) -> Job:
    """Read what ``folder`` holds and decide what becomes of it; only headers of weight files are read.

    ``model``: its name, for report and model card; ``tensor_parallel_size``: how many ranks it was split for, or are to
    serve the result; ``split_output``: the result is divided for these; ``texts``: to calibrate with, where ``options``
    need some. Raises :class:`ModelFilesError` for all that cannot be quantised.
    """
    fields = read_json(folder, CONFIG_NAME)
    require_unquantized(folder, fields)
    require_generative(folder, fields)
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
    ranks = ranks_of(folder, tensor_parallel_size) if split_output else None
    reader = TensorReader(folder)
    if any(file.suffix == ".gguf" for file in reader.checkpoint.files):
        raise ModelFilesError(f"{folder}: GGUF files are not quantised here; take the model's safetensors files")
    if problems := check_weights(reader.checkpoint, config):
        raise ModelFilesError(f"{folder}: {'; '.join(problems)}")
    untied: str | None = None
    if config.decoder.tied and options.embedding and not options.head:
        raise ModelFilesError(
            f"{folder}: the embedding table is the output matrix, too; with --quant_embedding give --quant_lm_head, or "
            "leave both out"
        )
    if config.decoder.tied and options.head:
        config, untied = untie(folder, fields, reader)
    tensors = reader.checkpoint.tensors
    plan = make_plan(config, tensors, options, _head(config, fields), untied)
    layout = make_layout(tensors, plan, options, max_shard_bytes)
    samples = _samples(folder, config, options, texts) if options.calibrates else None
    fingerprint = _fingerprint(model, options, max_shard_bytes, fields, reader.checkpoint.files, samples, ranks)
    return Job(
        folder=folder,
        model=model,
        options=options,
        fields=fields,
        reader=reader,
        plan=plan,
        layout=layout,
        max_shard_bytes=max_shard_bytes,
        fingerprint=fingerprint,
        config=config,
        samples=samples,
        images=None if samples is None else images_of(samples, config, reader),
        left=(),
        ranks=ranks,
        states_in_files=states_in_files,
    )


def quantize_model(job: Job, output: OutputFolder, start: Callable[[int], Progress]) -> Report:
    """Make ``output`` the quantised checkpoint, which cannot be loaded before it is whole; goes on where an earlier run
    of the same job was stopped.

    ``start``: called with the bytes of the source that are to be worked on, gives what is called with those that were.
    Raises :class:`ModelFilesError` for a folder that is not empty, a staging folder of somebody else, too little space,
    weights that cannot be quantised and a source that changes meanwhile, ``OSError``.
    """
    staging = output.staging
    report = _finished(output, job)
    output.require_usable(whole=report is not None)
    if report is None:
        output.parent.mkdir(parents=True, exist_ok=True)
        done = _resumable(output, job)
        if job.samples is not None:
            map_large_allocations()
        calibration = _with_space(output, job)
        if job.options.max_perplexity_increase is not None:
            job = _with_some_left(staging, job, start)
            done = _resumable(output, job)
            calibration = _with_space(output, job)
        staging.mkdir(exist_ok=True)
        progress = start(sum(unit.source.nbytes for unit in job.layout.units if unit.source.name not in done))
        with Journal(staging / JOURNAL_NAME, job.fingerprint, done.values()) as journal:
            by_layer = () if calibration is None else calibration.names
            done = write_weights(staging, job.layout, job.reader, job.options, journal, done, progress, by_layer)
            found = None
            if calibration is not None:
                done, found = calibration.run(journal, done, start, progress)
        report = _write_others(staging, job, done, found)
        if _has_changed(job):
            output.discard()
            raise ModelFilesError(
                f"{job.folder} was changed while it was quantised; what was made of it is deleted: give the command "
                "again when the folder is complete"
            )
        if job.ranks is not None:
            divide(staging, job.ranks, job.max_shard_bytes, start)
        (staging / JOURNAL_NAME).unlink()
        sync(staging)
        output.require_usable(whole=True)
    put_in_place(staging)
    for file in staging.glob(f"{JOURNAL_NAME}.*") if staging.is_dir() else ():
        file.unlink()
    output.publish()
    return report


def made_before(output: OutputFolder, job: Job) -> Report | None:
    """The report where ``output`` is what the job is to make, whole. Whoever runs a job again, such as Kubernetes after
    a node is lost, need not know that it was done."""
    if not (output.path / CONFIG_NAME).is_file() or os.path.lexists(output.staging):
        return None
    report = _read_report(output.path / REPORT_NAME)
    if report is None or report.fingerprint != job.fingerprint:
        return None
    if job.ranks is not None:
        return report if is_made(output.path, job.ranks) else None
    left = () if report.calibration is None else report.calibration.left
    weights = [(output.path / file.name, file.nbytes) for file in _leaving(job, left).layout.files]
    return report if all(path.is_file() and path.stat().st_size == nbytes for path, nbytes in weights) else None


def _fingerprint(
    model: str,
    options: QuantizeOptions,
    max_shard_bytes: int,
    fields: Mapping[str, Any],
    files: Sequence[Path],
    samples: Samples | None,
    ranks: Ranks | None,
) -> str:
    """Of the source, as its ``config.json`` and weight ``files`` are now, and of what is to be made of it."""
    sources = [source_file(file) for file in files]
    tokens = None if samples is None else samples.digest
    parts = (FORMAT, model, options, max_shard_bytes, fields, sources, tokens, ranks, str(torch.__version__))
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _has_changed(job: Job) -> bool:
    """Whether the source is no longer what the job was prepared for."""
    try:
        fields = read_json(job.folder, CONFIG_NAME)
        files = job.reader.checkpoint.files
        now = _fingerprint(job.model, job.options, job.max_shard_bytes, fields, files, job.samples, job.ranks)
        return now != job.fingerprint
    except (FileNotFoundError, ModelFilesError):
        return True


def _finished(output: OutputFolder, job: Job) -> Report | None:
    """The report where all that the job is to make is in staging, or some of it in place already: the journal goes
    before that."""
    staging = output.staging
    if not staging.is_dir() or (staging / JOURNAL_NAME).exists():
        return None
    file = next((place / REPORT_NAME for place in output.places if (place / REPORT_NAME).is_file()), None)
    if file is None:
        return None
    report = _read_report(file)
    return report if report is not None and report.fingerprint == job.fingerprint else None


def _read_report(file: Path) -> Report | None:
    """None where there is none, or one of another release."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except (FileNotFoundError, ValueError):  # of msgspec, or bytes that are not UTF-8
        return None


def _resumable(output: OutputFolder, job: Job) -> dict[str, Done]:
    """What is done in the staging folder, which is deleted where it belongs to another job."""
    staging = output.staging
    fingerprint, done = read_journal(staging / JOURNAL_NAME)
    if fingerprint != job.fingerprint:
        if fingerprint is not None:
            logger.warning(
                "%s is of another model, of one that has changed, or of other flags; it is begun anew", staging
            )
        output.discard()
        return {}
    whole = [
        file for file in job.layout.files
        if (staging / file.name).is_file() and (staging / file.name).stat().st_size == file.nbytes
    ]  # fmt: skip
    # An entry without an error is of a tensor that was copied; of any other it says nothing.
    quantized = {unit.source.name: unit.module is not None for file in whole for unit in file.units}
    return {name: entry for name, entry in done.items() if quantized.get(name) == (entry.error is not None)}


def _with_space(output: OutputFolder, job: Job) -> Calibration | None:
    """What calibrates, where the algorithm needs it. Raises :class:`ModelFilesError` where the disk has too little
    space for what is missing."""
    staging = output.staging
    calibration = None if job.samples is None else Calibration(job, staging, job.samples)
    there = sum(file.stat().st_blocks * _BLOCK for file in staging.rglob("*")) if staging.exists() else 0
    others = [file for file in side_files(job.folder) if file.name not in _OF_QUANTIZED]
    needed = job.layout.nbytes * (1 if job.ranks is None else 2)  # the parts are made of the whole
    needed += 0 if calibration is None else calibration.nbytes
    require_space(output.parent, max(0, needed - there), others)
    return calibration


def _with_some_left(staging: Path, job: Job, start: Callable[[int], Progress]) -> Job:
    """The job without the linear layers that cost too much perplexity; which ones is found once and kept in the staging
    folder."""
    assert job.samples is not None
    file = staging / _LEFT_NAME
    if file.is_file():
        left = msgspec.json.decode(file.read_bytes(), type=tuple[str, ...])
    else:
        staging.mkdir(exist_ok=True)
        with Journal(staging / JOURNAL_NAME, job.fingerprint, ()):
            left = find_left(job, staging, job.samples, start)
        write_whole(file, msgspec.json.encode(left))
    return _leaving(job, left)


def _leaving(job: Job, left: tuple[str, ...]) -> Job:
    """The job without the linear layers ``left``, by their modules."""
    if not left:
        return job
    plan = job.plan.without(left)
    layout = make_layout(job.reader.checkpoint.tensors, plan, job.options, job.max_shard_bytes)
    return replace(job, plan=plan, layout=layout, left=left)


def _write_others(staging: Path, job: Job, done: Mapping[str, Done], found: CalibrationReport | None) -> Report:
    """All but the weights."""
    report = make_report(job.fingerprint, job.model, job.options, job.layout, done, found)
    copy_side_files(job.folder, staging, _OF_QUANTIZED)
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
            sync(file)
    return report


def _samples(folder: Path, config: ModelConfig, options: QuantizeOptions, texts: Sequence[CalibrationText]) -> Samples:
    assert isinstance(config.decoder, DecoderSpec)
    try:
        return make_samples(
            texts,
            lambda some: encode_texts(folder, config, some),
            most=options.samples,
            length=options.length,
            max_positions=config.decoder.max_positions,
            vocab_size=config.vocab_size,
        )
    except (TokenizerFilesError, UnreadableTextError) as error:
        raise ModelFilesError(f"calibration: {error}") from None


def _head(config: ModelConfig, fields: Mapping[str, Any]) -> str:
    """What the family calls the output matrix's module."""
    return family_of(config.architecture, "generate").names_of(RawConfig(fields)).head
