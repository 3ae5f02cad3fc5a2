"""What AWQ checkpoints say of themselves (AutoAWQ, Hugging Face's ``AwqConfig``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.fields import group_size_of, is_named, parse, require_bits
from blade_llm.spec.quantization.weights import AwqForm

BITS: Final = (4,)


class _Awq(msgspec.Struct, frozen=True):
    bits: int | None = None
    w_bit: int | None = None
    group_size: int | None = None
    q_group_size: int | None = None
    zero_point: bool = True
    version: str | None = None
    checkpoint_format: str | None = None
    """What GPTQModel calls the version."""
    modules_to_not_convert: list[str] = []


def read_awq(fields: Mapping[str, Any]) -> Callable[[str], AwqForm | None]:
    """The form of each module.

    Raises :class:`UnsupportedModelError` for bits or a layout that are not read, ``ValueError`` for senseless fields.
    """
    config = parse(fields, _Awq)
    version = config.version or config.checkpoint_format or "gemm"
    if version.lower() != "gemm":
        raise UnsupportedModelError(f"AWQ's 'version' {version!r} is not supported; 'gemm' is")
    if not config.zero_point:
        raise UnsupportedModelError("AWQ without 'zero_point' is not supported")
    bits = config.bits if config.bits is not None else config.w_bit
    require_bits(4 if bits is None else bits, BITS, "AWQ")
    size = config.group_size if config.group_size is not None else config.q_group_size
    form = AwqForm(group_size_of(128 if size is None else size))

    def form_of(module: str) -> AwqForm | None:
        if module.rpartition(".")[2] == "lm_head" or is_named(module, config.modules_to_not_convert):
            return None
        return form

    return form_of
