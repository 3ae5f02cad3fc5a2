"""How the outputs for one prompt are parsed, and what guides their decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.served_model import ServedModel
from blade_llm.api.generation.structured_outputs import check_structure
from blade_llm.api.tools.grammar import ArgumentsError, output_structure
from blade_llm.api.tools.offered import chosen, read_offered
from blade_llm.api.tools.requests import Tool, ToolChoice
from blade_llm.api.tools.use import ToolUse, read_tools
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.validation import Validator
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import ReasoningForm
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import TOOL_PARSERS


def offered_tools(
    model: ServedModel,
    tools: Sequence[Tool],
    choice: ToolChoice | None,
    *,
    parallel: bool = True,
    own_template: bool = False,
) -> ToolUse | None:
    """What a request offers the model to call; see :func:`read_tools`.

    Args:
        own_template: the request brings a chat template in place of the model's.

    Raises :class:`ApiError` 400, also for a model that cannot call.
    """
    offered, choice = chosen(read_offered(tools), choice)
    use = read_tools(offered.functions, choice, parallel=parallel, places=offered.places, freeform=offered.freeform)
    if use is not None:
        _require_tools(model, own_template=own_template)
    return use


def _require_tools(model: ServedModel, *, own_template: bool) -> None:
    if not own_template and (model.chat_template is None or not model.chat_template.takes_tools):
        raise bad_request("this model's chat template has no place for tools; leave tools out", "tools", "unsupported")
    if model.call_form is None:
        known = " or ".join(TOOL_PARSERS)
        message = f"how this model writes tool calls is not known; start the server with --tool_call_parser {known}"
        raise bad_request(message, "tools", "unsupported")


def output_parsing(model: ServedModel, use: ToolUse | None, prompt: str, generated: str = "") -> OutputParsing | None:
    """The parsing of outputs for the rendered ``prompt``, which ends with the text ``generated`` already.

    None: the outputs' text is all content.
    """
    reasoning = _reasoning(model, prompt, generated)
    if use is None and reasoning is None:
        return None
    return OutputParsing(
        calls=None if use is None else model.call_form,
        names=frozenset() if use is None else use.names,
        freeform=frozenset() if use is None else use.freeform,
        parameters={} if use is None else {function.name: function.parameters for function in use.functions},
        named=use is not None and use.mode == "named",
        forced=use is not None and use.mode != "auto",
        reasoning=reasoning,
        inside=reasoning is not None and reasoning.begins_inside(prompt, generated),
    )


def _reasoning(model: ServedModel, prompt: str, generated: str) -> ReasoningForm | None:
    """How the output for ``prompt`` marks its reasoning; None: it does not think."""
    form = model.reasoning_form
    if form is None or not form.opened or form.begins_inside(prompt, generated):
        return form
    return form if any(marker in generated for marker in form.markers) else None


async def guided(
    sampling: SamplingParams,
    parsing: OutputParsing | None,
    use: ToolUse | None,
    tokenizer: Tokenizer,
    validator: Validator,
) -> SamplingParams:
    """``sampling`` with a structure that leaves room for reasoning and makes calls keep what ``use`` promises.

    A structure that ``sampling`` has already is that of the content. Raises :class:`ApiError` 400 for parameters that
    no call can be held to.
    """
    if parsing is None:
        return sampling
    if use is not None and not validator.closes_objects:
        use = dataclasses.replace(use, closed=False)
    calls = use is not None and parsing.calls is not None and (use.guided or sampling.grammar_spec is not None)
    if use is not None and calls:
        for index, function in enumerate(use.functions):
            if function.name in use.names:
                schema = msgspec.json.encode(use.schema(function)).decode()
                await check_structure(
                    GrammarSpec("json", schema), validator, f"tools.{use.place(index)}.function.parameters"
                )
    try:
        structure = output_structure(sampling.grammar_spec, parsing, use, tokenizer)
    except ArgumentsError as error:
        places = {} if use is None else {each.name: use.place(index) for index, each in enumerate(use.functions)}
        place = f"tools.{places[error.function]}.function.parameters: " if error.function in places else ""
        raise bad_request(f"{place}{error}", "tools" if calls else "response_format", "unsupported") from None
    if structure is None or structure == sampling.grammar_spec:
        return sampling
    await check_structure(structure, validator, "tools" if calls else "response_format")
    return msgspec.structs.replace(sampling, grammar_spec=structure)
