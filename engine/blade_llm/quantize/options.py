"""How a checkpoint is to be quantised."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from blade_llm.spec.quantized import Float8Form, IntegerForm

ALGORITHMS: Final = ("minmax",)
BITS: Final = (8, 4, 3)
_FP8_BITS: Final = 8


class QuantizeOptions(msgspec.Struct, frozen=True):
    """Algorithm and grid. Raises ``ValueError``, in terms of the flags, for what does not go together."""

    algorithm: Literal["minmax"] = "minmax"
    bits: int = 8
    dtype: Literal["int", "fp8"] = "int"
    """``fp8`` is e4m3."""
    group_size: int | None = None
    """Inputs that share a scale; None: all inputs of an output."""
    symmetric: bool = True
    """Integers around 0, without zero points."""
    ignore: tuple[str, ...] = ()
    """Modules that stay as they are: names, names with ``*``, or regular expressions after ``re:``."""

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"--bit {self.bits} is not possible; give {', '.join(map(str, BITS))}")
        if self.dtype == "int":
            return
        if self.bits != _FP8_BITS:
            raise ValueError(
                f"--quant_dtype fp8 has 8 bits, not {self.bits}; leave --bit out, or give --quant_dtype int"
            )
        if self.group_size is not None:
            raise ValueError("--block_wise_quant is for integers; leave it out with --quant_dtype fp8")
        if not self.symmetric:
            raise ValueError("--asymmetric is for integers; leave it out with --quant_dtype fp8")

    @property
    def form(self) -> IntegerForm | Float8Form:
        """What a weight becomes."""
        if self.dtype == "fp8":
            return Float8Form(rows=1, columns=None)
        strategy: Literal["channel", "group"] = "channel" if self.group_size is None else "group"
        return IntegerForm(
            self.bits, packed=True, strategy=strategy, group_size=self.group_size, symmetric=self.symmetric
        )

    @property
    def format(self) -> str:
        """The compressed-tensors name of the form."""
        return "float-quantized" if self.dtype == "fp8" else "pack-quantized"

    @property
    def described(self) -> str:
        """In words, for people."""
        if self.dtype == "fp8":
            return "fp8 (e4m3), one scale an output"
        scale = "one scale an output" if self.group_size is None else f"one scale for {self.group_size} inputs"
        return f"{self.bits}-bit integers, {scale}, {'symmetric' if self.symmetric else 'with zero points'}"
