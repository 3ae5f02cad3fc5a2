"""What GPTQ checkpoints say of themselves (AutoGPTQ, GPTQModel, Hugging Face's ``GPTQConfig``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.fields import group_size_of, matcher_of, parse, require_bits
from blade_llm.spec.quantization.weights import GptqForm

BITS: Final = (2, 3, 4, 8)
_ZERO_OFFSETS: Final = {"gptq": 1, "gptq_v2": 0}
_NO_MATCH: Final = "-:"


class _Settings(msgspec.Struct, frozen=True):
    bits: int
    group_size: int = 128
    desc_act: bool = False


class _Gptq(_Settings, frozen=True):
    checkpoint_format: str = "gptq"
    dynamic: dict[str, dict[str, Any]] = {}
    """Regular expressions of modules, and what is other there; ``-:`` before one: they are not quantised."""
    lm_head: bool = False
    modules_in_block_to_quantize: list[list[str] | str] = []
    """Ends of the names of those modules that are quantised; none: all linear layers inside of blocks."""
    is_marlin_format: bool = False


def read_gptq(fields: Mapping[str, Any]) -> Callable[[str], GptqForm | None]:
    """The form of each module.

    Raises :class:`UnsupportedModelError` for bits or a layout that are not read, ``ValueError`` for senseless fields.
    """
    config = parse(fields, _Gptq)
    if config.is_marlin_format or config.checkpoint_format not in _ZERO_OFFSETS:
        found = "marlin" if config.is_marlin_format else config.checkpoint_format
        raise UnsupportedModelError(
            f"GPTQ's 'checkpoint_format' {found!r} is not supported; {' and '.join(map(repr, _ZERO_OFFSETS))} are"
        )
    zero_offset = _ZERO_OFFSETS[config.checkpoint_format]
    named = [
        name for entry in config.modules_in_block_to_quantize for name in ([entry] if isinstance(entry, str) else entry)
    ]
    rules = [(_matcher(rule), rule.startswith(_NO_MATCH), change) for rule, change in config.dynamic.items()]
    common = _form(config, zero_offset)

    def form_of(module: str) -> GptqForm | None:
        if module.rpartition(".")[2] == "lm_head":
            if not config.lm_head:
                return None
        elif named and not module.endswith(tuple(f".{name}" for name in named)):
            return None
        for matches, excluded, change in rules:
            if matches(module):
                changed = {name: getattr(config, name) for name in _Settings.__struct_fields__} | change
                return None if excluded else _form(parse(changed, _Settings), zero_offset)
        return common

    return form_of


def _form(settings: _Settings, zero_offset: int) -> GptqForm:
    group_size = group_size_of(settings.group_size)
    bits = require_bits(settings.bits, BITS, "GPTQ")
    # One scale a row: no order makes a difference.
    return GptqForm(bits, group_size, settings.desc_act and group_size is not None, zero_offset)


def _matcher(rule: str) -> Callable[[str], bool]:
    return matcher_of(rule.removeprefix(_NO_MATCH).removeprefix("+:"), f"'dynamic' has {rule!r},")
