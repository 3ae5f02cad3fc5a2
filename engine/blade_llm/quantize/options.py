"""How a checkpoint is to be quantised."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from blade_llm.spec.quantization.weights import Float8Form, IntegerForm

Algorithm = Literal["minmax", "gptq", "awq", "smoothquant", "smoothquant+", "smoothquant_gptq"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("minmax", "gptq", "awq", "smoothquant", "smoothquant+", "smoothquant_gptq")
BITS: Final = (8, 4, 3)
SAMPLES: Final = 128
"""Texts to calibrate with at most."""
LENGTH: Final = 256
"""Tokens of each at most: with :data:`SAMPLES` of them more tokens than most layers have inputs, and a model of half a
billion weights takes minutes."""
_EIGHT: Final = 8
_SMOOTHING: Final = ("smoothquant", "smoothquant_gptq")
_GPTQ: Final = ("gptq", "smoothquant_gptq")
_WEIGHTS_ONLY: Final = ("awq", "smoothquant+")


class QuantizeOptions(msgspec.Struct, frozen=True):
    """Algorithm and grid. Raises ``ValueError``, in terms of the flags, for what does not go together."""

    algorithm: Algorithm = "minmax"
    bits: int = 8
    dtype: Literal["int", "fp8"] = "int"
    """``fp8`` is e4m3."""
    group_size: int | None = None
    """Inputs that share a scale; None: all inputs of an output."""
    symmetric: bool = True
    """Integers around 0, without zero points."""
    ignore: tuple[str, ...] = ()
    """Modules that stay as they are: names, names with ``*``, or regular expressions after ``re:``."""
    activations: bool = False
    """The inputs of quantised layers are rounded to 8 bits, too, when the model is computed."""
    samples: int = SAMPLES
    """Texts to calibrate with at most."""
    length: int = LENGTH
    """Tokens of a text at most."""
    act_order: bool = True
    """GPTQ rounds inputs with large activations first; groups stay consecutive inputs."""
    damping: float = 0.01
    """Share of the mean of the Hessian's diagonal that GPTQ adds to the diagonal."""
    smoothing: float = 0.5
    """SmoothQuant's exponent: 0 leaves the difficulty in the activations, 1 moves all of it into the weights."""
    head: bool = False
    """The output matrix is quantised, too: to the nearest, whatever the algorithm."""
    embedding: bool = False
    """So is the embedding table, as :attr:`for_table` says; a token's row becomes floats when it is looked up."""
    max_perplexity_increase: float | None = None
    """The most that perplexity may grow, as a share of it: as many layers as it takes stay as they are. None: any."""

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"--bit {self.bits} is not possible; give {', '.join(map(str, BITS))}")
        if self.dtype == "fp8":
            self._check_float8()
        if self.activations:
            self._check_activations()
        if self.embedding and not self.symmetric:
            raise ValueError(
                "--quant_embedding does not go with --asymmetric: transformers reads zero points of one form for all "
                "layers, and tables have another; leave one of them out"
            )
        if not (math.isfinite(self.damping) and self.damping >= 0):
            raise ValueError(f"--damping {self.damping}: give a share of at least 0, such as 0.01")
        most = self.max_perplexity_increase
        if most is not None and not (math.isfinite(most) and most >= 0):
            raise ValueError(f"--max_perplexity_increase {most:g}: give a share of at least 0, such as 0.02")
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"--smoothing_strength {self.smoothing}: give a number from 0 to 1, such as 0.5")

    def _check_float8(self) -> None:
        if self.bits != _EIGHT:
            raise ValueError(
                f"--quant_dtype fp8 has 8 bits, not {self.bits}; leave --bit out, or give --quant_dtype int"
            )
        if self.group_size is not None:
            raise ValueError("--block_wise_quant is for integers; leave it out with --quant_dtype fp8")
        if not self.symmetric:
            raise ValueError("--asymmetric is for integers; leave it out with --quant_dtype fp8")
        if self.algorithm in (*_GPTQ, *_WEIGHTS_ONLY):
            raise ValueError(
                f"--quant_algo {self.algorithm} chooses integers; with --quant_dtype fp8 give minmax or smoothquant"
            )

    def _check_activations(self) -> None:
        mode = "--quant_mode act_and_weight_quant"
        if self.bits != _EIGHT:
            raise ValueError(f"{mode} has 8 bits, not {self.bits}; leave --bit out, or leave --quant_mode out")
        if self.group_size is not None or not self.symmetric:
            flag = "--asymmetric" if self.group_size is None else "--block_wise_quant"
            raise ValueError(f"{mode} has one scale an output and no zero points; leave {flag} out")
        if self.algorithm in _WEIGHTS_ONLY:
            raise ValueError(
                f"--quant_algo {self.algorithm} is for weights alone; with {mode} give minmax, gptq, smoothquant or "
                "smoothquant_gptq"
            )

    @property
    def calibrates(self) -> bool:
        """Whether texts are needed."""
        return self.algorithm != "minmax" or self.max_perplexity_increase is not None

    @property
    def uses_gptq(self) -> bool:
        return self.algorithm in _GPTQ

    @property
    def smooths(self) -> bool:
        """Whether what is hard in activations moves into weights."""
        return self.algorithm in _SMOOTHING or self.algorithm == "smoothquant+"

    @property
    def for_table(self) -> QuantizeOptions:
        """The embedding table's: 8 bits, one scale a row.

        Unpacked, as weights are whose inputs are rounded: transformers 5.23 cannot make a packed table, as it
        initialises the ``weight`` that is not there.
        """
        return QuantizeOptions(bits=_EIGHT, dtype=self.dtype, activations=True)

    @property
    def form(self) -> IntegerForm | Float8Form:
        """What a weight becomes."""
        if self.dtype == "fp8":
            return Float8Form(rows=1, columns=None)
        strategy: Literal["channel", "group"] = "channel" if self.group_size is None else "group"
        packed = not self.activations
        return IntegerForm(
            self.bits, packed=packed, strategy=strategy, group_size=self.group_size, symmetric=self.symmetric
        )

    @property
    def format(self) -> str:
        """The compressed-tensors name of the form."""
        if self.dtype == "fp8":
            return "float-quantized"
        return "int-quantized" if self.activations else "pack-quantized"

    @property
    def described(self) -> str:
        """In words, for people."""
        inputs = "; inputs rounded to 8 bits token by token" if self.activations else ""
        if self.dtype == "fp8":
            return f"fp8 (e4m3), one scale an output{inputs}"
        scale = "one scale an output" if self.group_size is None else f"one scale for {self.group_size} inputs"
        return f"{self.bits}-bit integers, {scale}, {'symmetric' if self.symmetric else 'with zero points'}{inputs}"
