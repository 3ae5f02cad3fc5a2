"""The model as the HTTP side knows it: tokenizer, chat template, names, defaults.

Imports nothing heavy, so that a server can read it before the engine process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from blade_llm.api.common.pooling import Pooling, find_pooling, require_causal
from blade_llm.config import Task
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.chat_template import RESERVED, ChatTemplate, load_chat_template
from blade_llm.text.errors import ChatTemplateError, TokenizerFilesError
from blade_llm.text.json_files import read_json_object
from blade_llm.text.reasoning import REASONING_PARSERS, ReasoningForm, detect_reasoning_parser
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import NO_PARSER, TOOL_PARSERS, CallForm, as_taught, detect_tool_parser

_Form = TypeVar("_Form", CallForm, ReasoningForm)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that says nothing gets: the model's ``generation_config.json``, else the neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """All but the weights."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    vocab_size: int
    names: tuple[str, ...]
    """Listed by ``/v1/models``; responses carry the first."""
    aliases: frozenset[str] = frozenset()
    """Further names requests may use (the path given to ``--model``)."""
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the chat template where a request does not give them."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    task: Task = "generate"
    pooling: Pooling = "last"
    """How a prompt's hidden states become its embedding, where the request does not say."""
    call_form: CallForm | None = None
    """How the model writes tool calls; None: it is unknown, or calls are not parsed."""
    reasoning_form: ReasoningForm | None = None
    """How the model marks its reasoning; None: it does not think, or its thoughts are content."""
    adapters: bool = False
    """Requests may name LoRA adapters."""
    runtime_adapters: bool = False
    """Clients may load and unload them."""
    open_schemas: bool = False
    """Objects of a schema may have properties that it does not name."""
    tokenizer_info: bool = False
    """Clients may read the tokenizer's configuration and the chat template."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where to read a :class:`ServedModel` from. Crosses process boundaries as msgpack."""

    folder: str
    vocab_size: int
    names: tuple[str, ...] = ()
    aliases: frozenset[str] = frozenset()
    tokenizer_dir: str | None = None
    tokenizer_special_tokens: tuple[str, ...] = ()
    """Further special tokens, or ``NAME=TOKEN`` (:class:`~blade_llm.text.tokenizer.Tokenizer`)."""
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] = {}
    task: Task = "generate"
    pooling: Pooling | None = None
    """None: as the model's folder says, else ``last``, or of an encoder ``cls``."""
    bidirectional: bool = False
    """The model is an encoder."""
    tool_call_parser: str | None = None
    """A name of :data:`~blade_llm.text.tool_parsers.TOOL_PARSERS`, or ``none``; None: what the chat template shows."""
    reasoning_parser: str | None = None
    """A name of :data:`~blade_llm.text.reasoning.REASONING_PARSERS`, or ``none``; None: what the template shows."""
    adapters: bool = False
    runtime_adapters: bool = False
    tokenizer_info: bool = False
    open_schemas: bool = False


def load_served_model(source: ModelSource) -> ServedModel:
    """Read the text side of a model.

    Raises :class:`~blade_llm.text.errors.TokenizerFilesError` for missing or broken files, for a tokenizer with ids the
    model does not have, and for a parser that is not known.
    """
    folder = Path(source.folder)
    tokenizer_dir = folder if source.tokenizer_dir is None else Path(source.tokenizer_dir)
    tokenizer = Tokenizer(tokenizer_dir, source.tokenizer_special_tokens)
    tokenizer.require_within(source.vocab_size)
    if taken := RESERVED & source.default_chat_template_kwargs.keys():
        raise TokenizerFilesError(f"--default_chat_template_kwargs may not set {sorted(taken)[0]!r}; leave it out")
    template = load_chat_template(tokenizer, source.chat_template)
    text = "" if template is None else template.source
    call_form = _named("--tool_call_parser", source.tool_call_parser, TOOL_PARSERS, detect_tool_parser(text))
    return ServedModel(
        tokenizer=tokenizer,
        chat_template=template,
        vocab_size=source.vocab_size,
        names=source.names,
        aliases=source.aliases,
        adapters=source.adapters,
        runtime_adapters=source.runtime_adapters,
        tokenizer_info=source.tokenizer_info,
        open_schemas=source.open_schemas,
        default_chat_template_kwargs=source.default_chat_template_kwargs,
        sampling_defaults=_sampling_defaults(folder / "generation_config.json"),
        task=source.task,
        pooling=_pooling(source),
        call_form=None if call_form is None else as_taught(call_form, text),
        reasoning_form=_reasoning_form(source.reasoning_parser, template),
    )


def _reasoning_form(name: str | None, template: ChatTemplate | None) -> ReasoningForm | None:
    detected = None if template is None else detect_reasoning_parser(template.source)
    form = _named("--reasoning_parser", name, REASONING_PARSERS, detected)
    if form is None or template is None:
        return form
    try:
        thinking, plain = (
            template.render([{"role": "user", "content": "?"}], arguments={"enable_thinking": on, "thinking": on})
            for on in (True, False)
        )
    except ChatTemplateError:  # it wants other conversations
        return form
    return replace(form, opened=form.opened_by(thinking, plain))


def _pooling(source: ModelSource) -> Pooling:
    if source.task == "embed" and not source.bidirectional:
        require_causal(Path(source.folder))
    if source.task == "score":
        return "cls" if source.bidirectional else "last"  # what the classifier was trained on
    if source.pooling is not None:
        return source.pooling
    try:
        return find_pooling(Path(source.folder)) or ("cls" if source.bidirectional else "last")
    except TokenizerFilesError:
        if source.task == "embed":
            raise
        return "last"  # it is here to generate text


def _named(option: str, name: str | None, known: Mapping[str, _Form], detected: _Form | None) -> _Form | None:
    if name is None:
        return detected
    if name != NO_PARSER and name not in known:
        raise TokenizerFilesError(f"{option} {name}: unknown; known are {', '.join(known)} and {NO_PARSER}")
    return known.get(name)


def _sampling_defaults(path: Path) -> SamplingDefaults:
    raw: dict[str, Any] = read_json_object(path)
    if raw.get("do_sample") is False:
        return SamplingDefaults()  # temperatures that are not meant to be used
    known = {name: raw[name] for name in SamplingDefaults.__struct_fields__ if raw.get(name) is not None}
    try:
        defaults = msgspec.convert(known, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise TokenizerFilesError(f"{path}: {error}") from None
    # Every request that says nothing would be refused for it.
    if problem := SamplingParams(**msgspec.structs.asdict(defaults)).problem():
        name, advice = problem
        raise TokenizerFilesError(f"{path}: {name} {advice}, not {known[name]}; correct the file")
    return defaults
