"""Chat templates: a conversation becomes the prompt its model was trained on.

Templates are programs from the internet, so they run in jinja2's immutable sandbox. Helpers and whitespace rules are
those of Hugging Face's ``apply_chat_template``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blade_llm.text.errors import ChatTemplateError, TokenizerFilesError
from blade_llm.text.json_files import read_json_object

if TYPE_CHECKING:
    from blade_llm.text.tokenizer import Tokenizer

RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Names a request's own template arguments may not take."""

_REASONING_NAMES: Final = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A compiled template. Raises :class:`TokenizerFilesError` when it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str = "chat template") -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerFilesError(f"{origin}, line {error.lineno}: {error.message}") from None
        self._special_tokens = dict(special_tokens)
        self.source = source
        self.variables = frozenset(variables)
        """What it reads, of arguments and of what every template has."""
        self.takes_tools = "tools" in variables
        """Whether it has a place for the tools a model may call."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. Special tokens stand in it as text; encode it without adding more.

        Raises :class:`ChatTemplateError` when the template refuses the conversation.
        """
        try:
            return self._template.render(
                **{
                    **self._special_tokens,
                    "tools": None,
                    "documents": None,
                    **(arguments or {}),
                    "messages": [_with_reasoning(message) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses this conversation: {error.message}") from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template cannot render this conversation: {error}") from None


def load_chat_template(tokenizer: Tokenizer, override: str | None = None) -> ChatTemplate | None:
    """``override``, else the folder's ``chat_template.jinja``, else ``chat_template`` of ``tokenizer_config.json``.

    None when the model has none. Raises :class:`TokenizerFilesError`.

    Args:
        override: path of a file, or a template itself, which is known by its braces.
    """
    path = Path(override) if override is not None else tokenizer.folder / "chat_template.jinja"
    source: object
    if override is not None and not _is_file(path):
        if not any(mark in override for mark in ("{{", "{%", "{#")):
            raise TokenizerFilesError(f"--chat_template {override}: no such file")
        return ChatTemplate(override, tokenizer.special_tokens, "--chat_template")
    if _is_file(path):
        flag = "" if override is None else "--chat_template "
        source, origin = path.read_text(encoding="utf-8"), f"{flag}{path}"
    else:
        source, origin = tokenizer.config.get("chat_template"), str(tokenizer.folder / "tokenizer_config.json")
        if source is None:
            source = read_json_object(tokenizer.folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return ChatTemplate(source, tokenizer.special_tokens, origin) if isinstance(source, str) else None


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """``message`` with its reasoning under all names that templates read."""
    found = next((message[name] for name in _REASONING_NAMES if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a template is no name of a file: too long, with null bytes
        return False


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks tokens for training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block, so that variables set inside end with it.
        return [nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)]

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """jinja2's own filter escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
