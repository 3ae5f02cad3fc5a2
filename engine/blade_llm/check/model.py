"""``check_model``: are the model's files whole, do they belong together, and can they be served here with these flags?

The server's own readers read them, in milliseconds: weights by their headers, tokenizer and chat template whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.api.common.pooling import Pooling
from blade_llm.api.common.served_model import ModelSource, ServedModel, load_served_model
from blade_llm.check.draft_model import draft_problems
from blade_llm.config import ModelImpl, SpeculativeConfig, Task
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config, through_transformers
from blade_llm.models.quantized.summary import describe, describe_path, unrounded
from blade_llm.models.sharding import expert_parallel_problem, pipeline_parallel_problem, tensor_parallel_problem
from blade_llm.models.tensors import expected_tensors
from blade_llm.spec.branching import branching_problem
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.tool_parsers import NO_PARSER
from blade_llm.weights.checkpoint import check_tower, check_weights, open_checkpoint, unused_tensors
from blade_protocol.check import CheckItem

NAME: Final = "check_model"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a service needs of its model's text side: fields of :class:`ModelSource`, and guided decoding."""

    tokenizer_dir: str | None = None
    tokenizer_special_tokens: tuple[str, ...] = ()
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] = {}
    task: Task = "generate"
    pooling: Pooling | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    guided: bool = False
    """Guided decoding is requested (``--enable_json_warmup``)."""
    draft_tokenizer_dir: str | None = None
    """Where the draft model's tokenizer is, if not in its folder (``--draft.tokenizer_dir``)."""

    def source(self, model_dir: Path, config: ModelConfig) -> ModelSource:
        """Where the server would read the text side from."""
        other = ("guided", "draft_tokenizer_dir")
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in other}
        return ModelSource(
            folder=str(model_dir),
            vocab_size=config.vocab_size,
            bidirectional=config.decoder.bidirectional,
            **fields,
        )


def check_model(
    model_dir: Path,
    wanted: Wanted | None = None,
    impl: ModelImpl = "auto",
    speculative: SpeculativeConfig | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    enable_expert_parallel: bool = False,
    with_visual: bool = True,
) -> CheckItem:
    """PASS when configuration, weights, tokenizer and chat template are in order, and do what is ``wanted``.

    ``speculative``: with a draft model its files and tokenizer are checked, too. ``tensor_parallel_size`` ranks and
    ``pipeline_parallel_size`` stages have to be able to divide it, its experts too with ``enable_expert_parallel``.
    ``with_visual``: its vision tower, where it has one, has to be complete. A
    base model has no chat template: that is PASS, and
    the detail says that chat is refused. WARNING for wishes that template or tokenizer cannot fulfil; FAILED otherwise,
    with every problem found.
    """
    wanted = wanted or Wanted()
    try:
        config = read_model_config(model_dir, impl, wanted.task)
    except ModelFilesError as error:
        return CheckItem(name=NAME, status="FAILED", detail=str(error))
    problems: list[str] = []
    weights = model = None
    depth = 0 if speculative is None else speculative.branch_depth
    if problem := branching_problem(config.decoder, depth):
        problems.append(f"{model_dir}: {problem}")
    if problem := tensor_parallel_problem(config, tensor_parallel_size, expert_parallel=enable_expert_parallel):
        problems.append(f"{model_dir}: {problem}")
    if enable_expert_parallel and (problem := expert_parallel_problem(config)):
        problems.append(f"{model_dir}: {problem}")
    if problem := pipeline_parallel_problem(config, pipeline_parallel_size):
        problems.append(f"{model_dir}: {problem}")
    try:
        weights = open_checkpoint(model_dir, tensor_parallel_size, expert_parallel=enable_expert_parallel)
        expected = expected_tensors(config, weights.tensors)
        found = [*check_weights(weights, config), *check_tower(weights, config.vision if with_visual else None)]
        problems += [f"{model_dir}: {problem}" for problem in found]
    except ModelFilesError as error:
        problems.append(str(error))
    try:
        model = load_served_model(wanted.source(model_dir, config))
    except TokenizerFilesError as error:
        problems.append(str(error))
    slow: list[str] = []
    if weights is not None and model is not None:
        wrong, slow = draft_problems(
            speculative, model_dir, config, model.tokenizer, weights.total_bytes, wanted.draft_tokenizer_dir
        )
        problems += wrong
    if problems or weights is None or model is None:
        return CheckItem(name=NAME, status="FAILED", detail="; ".join(problems))
    through = ", served through transformers" if through_transformers(config) else ""
    detail = (
        f"{config.architecture}{through}, {config.num_layers} layers, {len(weights.tensors)} tensors, "
        f"{weights.total_bytes} bytes in {len(weights.files)} files, vocabulary {config.vocab_size}{_found(model)}"
    )
    if unused := unused_tensors(weights, expected, config.tensors.skipped, config.tensors.vision):
        detail += f"; {unused}"
    if model.task == "generate" and model.chat_template is None:
        detail += "; no chat template: /v1/chat/completions answers 400 until --chat_template is given"
    tensors = config.tensors.found_in(weights.tensors)
    if quantized := describe(tensors):
        detail += f"; {quantized}; {describe_path(tensors)}"
    missing = [*_missing(model, config, wanted), *slow, *unrounded(tensors)]
    return CheckItem(name=NAME, status="WARNING" if missing else "PASS", detail="; ".join([detail, *missing]))


def _found(model: ServedModel) -> str:
    """How the server will parse this model's outputs, for the report."""
    if model.task != "generate":
        return f", pooling {model.pooling}"
    forms = (("tool calls", model.call_form), ("reasoning", model.reasoning_form))
    return "".join(f", {what} {form.name}" for what, form in forms if form is not None)


def _missing(model: ServedModel, config: ModelConfig, wanted: Wanted) -> Iterator[str]:
    """The wishes that cannot be fulfilled, and what to do instead."""
    if model.task != "generate":
        return
    parser, template = wanted.tool_call_parser, model.chat_template
    if parser not in (None, NO_PARSER) and not (template and template.takes_tools):
        without = "the chat template has no place for tools" if template else "there is no chat template for tools"
        yield (
            f"{without}, so the model never learns of them; give --chat_template one with a place for them, or leave "
            f"out --tool_call_parser {parser}"
        )
    if wanted.guided and (reason := _no_guided(model, config)):
        yield f"{reason}; leave out --enable_json_warmup, or use another model"


def _no_guided(model: ServedModel, config: ModelConfig) -> str:
    """Why guided decoding is not possible; empty when it is. Takes a second for a large vocabulary."""
    from blade_llm.sampling.guided.errors import GrammarSpecError
    from blade_llm.sampling.guided.vocabulary import load_vocabulary

    eos = model.tokenizer.eos_token_id
    try:
        load_vocabulary(
            model.tokenizer.folder, config.vocab_size, [*config.eos_token_ids, *([] if eos is None else [eos])]
        )
    except GrammarSpecError as error:
        return str(error)
    return ""
