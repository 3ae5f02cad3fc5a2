"""``check_model``: are the model's files whole, do they belong together, and can they be served here?

The server's own readers look at them, in milliseconds: weights by their headers, tokenizer and chat template whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from blade_llm.api.served_model import ModelSource, load_served_model
from blade_llm.models.checkpoint import check_tensors, open_checkpoint
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families import expected_tensors
from blade_llm.text.errors import TokenizerFilesError
from blade_protocol.check import CheckItem

NAME: Final = "check_model"


def check_model(model_dir: Path) -> CheckItem:
    """PASS when configuration, weights, tokenizer and chat template are in order.

    WARNING without a chat template (completions work, chat does not); FAILED otherwise, with every problem found.
    """
    try:
        config = load_model_config(model_dir)
    except ModelFilesError as error:
        return CheckItem(name=NAME, status="FAILED", detail=str(error))
    problems: list[str] = []
    weights = template = None
    try:
        weights = open_checkpoint(model_dir)
        problems += [f"{model_dir}: {problem}" for problem in check_tensors(weights, expected_tensors(config))]
    except ModelFilesError as error:
        problems.append(str(error))
    try:
        template = load_served_model(ModelSource(folder=str(model_dir), vocab_size=config.vocab_size)).chat_template
    except TokenizerFilesError as error:
        problems.append(str(error))
    if problems or weights is None:
        return CheckItem(name=NAME, status="FAILED", detail="; ".join(problems))
    detail = (
        f"{config.architecture}, {config.num_layers} layers, {len(weights.tensors)} tensors, "
        f"{weights.total_bytes} bytes in {len(weights.files)} files, vocabulary {config.vocab_size}"
    )
    if template is not None:
        return CheckItem(name=NAME, status="PASS", detail=detail)
    return CheckItem(
        name=NAME,
        status="WARNING",
        detail=f"{detail}; no chat template: /v1/chat/completions needs chat_template.jinja in {model_dir} "
        "or --chat_template",
    )
