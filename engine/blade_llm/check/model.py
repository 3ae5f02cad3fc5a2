"""``check_model``: are the model's files whole, do they belong together, and can they be served here?

Everything the engine would find out while loading, found in milliseconds from the files' headers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from blade_llm.models.checkpoint import check_tensors, open_checkpoint
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families import expected_tensors
from blade_protocol.check import CheckItem

NAME: Final = "check_model"


def check_model(model_dir: Path) -> CheckItem:
    """PASS when configuration, weights, tokenizer and chat template are in order.

    WARNING without a chat template (completions work, chat does not); FAILED otherwise, with every problem found.
    """
    try:
        config = load_model_config(model_dir)
        checkpoint = open_checkpoint(model_dir)
    except ModelFilesError as error:
        return CheckItem(name=NAME, status="FAILED", detail=str(error))
    problems = check_tensors(checkpoint, expected_tensors(config))
    problems += _tokenizer_problems(model_dir, config.vocab_size)
    try:
        template = find_chat_template(model_dir)
        if template is not None:
            _compile_template(template)
    except ModelFilesError as error:
        problems.append(str(error))
    if problems:
        return CheckItem(name=NAME, status="FAILED", detail=f"{model_dir}: {'; '.join(problems)}")
    detail = (
        f"{config.architecture}, {config.num_layers} layers, {len(checkpoint.tensors)} tensors, "
        f"{checkpoint.total_bytes} bytes in {len(checkpoint.files)} files, vocabulary {config.vocab_size}"
    )
    if template is None:
        return CheckItem(
            name=NAME,
            status="WARNING",
            detail=f"{detail}; no chat template: /v1/chat/completions needs chat_template.jinja in {model_dir} "
            "or --chat_template",
        )
    return CheckItem(name=NAME, status="PASS", detail=detail)


def find_chat_template(model_dir: Path) -> str | None:
    """The model's chat template: ``chat_template.jinja``, else ``chat_template`` in ``tokenizer_config.json``.

    A list of named templates gives the one named ``default``. Raises :class:`ModelFilesError` for an unreadable file.
    """
    own, config = model_dir / "chat_template.jinja", model_dir / "tokenizer_config.json"
    try:
        if own.is_file():
            return own.read_text(encoding="utf-8")
        raw: Any = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except ValueError as error:
        raise ModelFilesError(f"{own.name if own.is_file() else config.name} cannot be read: {error}") from None
    template = raw.get("chat_template") if isinstance(raw, dict) else None
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _compile_template(template: str) -> None:
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).from_string(template)
    except TemplateSyntaxError as error:
        raise ModelFilesError(f"the chat template does not compile: line {error.lineno}: {error.message}") from None


def _tokenizer_problems(model_dir: Path, vocab_size: int) -> list[str]:
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if not path.is_file():
        return ["tokenizer.json is missing; download it, or convert the tokenizer with transformers' save_pretrained"]
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        return [f"tokenizer.json cannot be read ({error}); download it again"]
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if ids and max(ids) >= vocab_size:
        return [
            f"tokenizer.json has token id {max(ids)}, config.json only {vocab_size} ids ('vocab_size'); "
            "they do not belong together"
        ]
    return []
