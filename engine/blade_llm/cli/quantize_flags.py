"""The flags of ``blade_llm_quantize``: BladeLLM's, and a few of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from blade_llm.cli.flags import Flag, boolean, byte_size, positive
from blade_llm.quantize.options import ALGORITHMS, BITS, QuantizeOptions

_BLOCK_SIZE: Final = 64
_MODEL: Final = (
    Flag(
        name="model",
        help="the model to quantise: a folder, or a hub id; also a folder of blade_llm_split",
        required=True,
        metavar="MODEL",
    ),
    Flag(
        name="output_dir",
        kind=Path,
        metavar="DIR",
        required=True,
        help="where the quantised model goes, new or empty; the same command continues one that was stopped",
    ),
    Flag(
        name="tensor_parallel_size",
        aliases=("-tp",),
        kind=positive,
        help="ranks that the folder was split for, or that will serve the result, which is one whole checkpoint",
    ),
    Flag(
        name="max_shard_size",
        kind=byte_size,
        default="5GB",
        help="largest weight file; what one tensor becomes is not divided",
    ),
)
_METHOD: Final = (
    Flag(
        name="quant_algo",
        default="minmax",
        choices=("minmax", "gptq", "awq", "smoothquant", "smoothquant+", "smoothquant_gptq"),
        accepts=ALGORITHMS,
        help="how weights are chosen",
    ),
    Flag(
        name="quant_mode",
        default="weight_only_quant",
        choices=("weight_only_quant", "act_and_weight_quant"),
        accepts=("weight_only_quant",),
        help="what is quantised",
    ),
    Flag(name="bit", default="8", choices=tuple(map(str, BITS)), help="bits a weight"),
    Flag(name="quant_dtype", default="int", choices=("int", "fp8"), help="integers, or floats (e4m3)"),
    Flag(
        name="block_wise_quant",
        kind=boolean,
        default=False,
        help="a scale for each --block_size inputs instead of one for all inputs of an output",
    ),
    Flag(
        name="block_size",
        kind=positive,
        default=_BLOCK_SIZE,
        help="inputs that share a scale with --block_wise_quant; must divide every layer's",
    ),
    Flag(
        name="asymmetric",
        kind=boolean,
        default=False,
        help="integers with a zero point for each scale: a smaller error, a little more memory",
    ),
    Flag(
        name="ignore",
        many=True,
        metavar="NAME",
        help="linear layers to leave as they are: names, names with *, or re: and a regular expression",
    ),
)
_CALIBRATION: Final = (
    Flag(
        name="calib_data",
        many=True,
        default=["hello world!"],
        metavar="TEXT",
        accepts=(),
        help="texts to calibrate with; minmax needs none",
    ),
    Flag(
        name="calib_data_file",
        kind=Path,
        metavar="FILE",
        accepts=(),
        help="file of JSON lines with texts to calibrate with; minmax needs none",
    ),
)
_MACHINE: Final = (
    Flag(
        name="cpu_offload",
        kind=boolean,
        default=False,
        help="accepted: memory holds one tensor at a time with or without it",
    ),
    Flag(
        name="experimental_pad",
        kind=boolean,
        default=False,
        help="accepted where nothing needs padding: a layer whose inputs --block_size does not divide is refused",
    ),
)
GROUPS: Final = (("model", _MODEL), ("method", _METHOD), ("calibration", _CALIBRATION), ("machine", _MACHINE))


def options_of(flags: Mapping[str, Any]) -> QuantizeOptions:
    """What the flags ask for. Raises ``ValueError`` for what does not go together."""
    block_wise, size = flags["block_wise_quant"], flags["block_size"]
    if not block_wise and size != _BLOCK_SIZE:
        raise ValueError(f"--block_size {size} does nothing by itself; add --block_wise_quant")
    if flags["max_shard_size"] < 1:
        raise ValueError("--max_shard_size 0 holds nothing; give a size like 5GB")
    return QuantizeOptions(
        algorithm=flags["quant_algo"],
        bits=int(flags["bit"]),
        dtype=flags["quant_dtype"],
        group_size=size if block_wise else None,
        symmetric=not flags["asymmetric"],
        ignore=tuple(flags["ignore"] or ()),
    )
