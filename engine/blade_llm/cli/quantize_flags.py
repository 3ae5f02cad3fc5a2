"""The flags of ``blade_llm_quantize``: BladeLLM's, and a few of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from blade_llm.cli.flags import Flag, boolean, byte_size, positive, tokens
from blade_llm.quantize.calibration.texts import CalibrationText, given_texts, read_texts
from blade_llm.quantize.options import ALGORITHMS, BITS, LENGTH, SAMPLES, QuantizeOptions

_BLOCK_SIZE: Final = 64
_DEFAULT_TEXTS: Final = ["hello world!"]
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
        help="ranks that the folder was split for, or that will serve the result",
    ),
    Flag(
        name="split_output",
        kind=boolean,
        default=False,
        help="the result is a folder for each rank, as blade_llm_split makes them, instead of one whole checkpoint",
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
        choices=ALGORITHMS,
        help="how weights are chosen",
    ),
    Flag(
        name="quant_mode",
        default="weight_only_quant",
        choices=("weight_only_quant", "act_and_weight_quant"),
        help="what is quantised: weights, or also what they are multiplied with, rounded token by token",
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
    Flag(
        name="quant_lm_head",
        kind=boolean,
        default=False,
        help="quantise the output matrix, too; of a model that shares it with the embedding it gets one of its own",
    ),
    Flag(
        name="quant_embedding",
        kind=boolean,
        default=False,
        help="quantise the embedding table, too; where it is the output matrix as well, with --quant_lm_head alone",
    ),
)
_CALIBRATION: Final = (
    Flag(
        name="calib_data",
        many=True,
        default=_DEFAULT_TEXTS,
        metavar="TEXT",
        help="texts to calibrate with; the default is too little for a good result; minmax needs none",
    ),
    Flag(
        name="calib_data_file",
        kind=Path,
        metavar="FILE",
        help='file with a line {"text": "…"}, or {"content": [{"image": "…"}, {"text": "…"}]}, for each text to '
        "calibrate with, 100 to 1,000 of them",
    ),
    Flag(name="calib_samples", kind=positive, default=SAMPLES, help="texts of these to use at most"),
    Flag(
        name="max_perplexity_increase",
        kind=float,
        metavar="SHARE",
        help="leave so many linear layers as they are that perplexity grows by no more than this share of it",
    ),
    Flag(name="calib_length", kind=tokens, default=LENGTH, help="tokens of each to use at most"),
)
_ALGORITHMS: Final = (
    Flag(name="act_order", kind=boolean, default=True, help="gptq rounds inputs with large activations first"),
    Flag(
        name="damping",
        kind=float,
        default=0.01,
        help="gptq adds this share of the mean of the Hessian's diagonal to the diagonal",
    ),
    Flag(
        name="smoothing_strength",
        kind=float,
        default=0.5,
        help="smoothquant's exponent: 0 leaves the difficulty in the activations, 1 moves it into the weights",
    ),
)
_MACHINE: Final = (
    Flag(
        name="cpu_offload",
        kind=boolean,
        default=False,
        help="hidden states of calibration lie in files beside the output instead of in memory",
    ),
    Flag(
        name="experimental_pad",
        kind=boolean,
        default=False,
        help="accepted where nothing needs padding: a layer whose inputs --block_size does not divide is refused",
    ),
)
GROUPS: Final = (
    ("model", _MODEL),
    ("method", _METHOD),
    ("calibration", _CALIBRATION),
    ("algorithms", _ALGORITHMS),
    ("machine", _MACHINE),
)


def options_of(flags: Mapping[str, Any]) -> QuantizeOptions:
    """What the flags ask for. Raises ``ValueError`` for what does not go together."""
    block_wise, size = flags["block_wise_quant"], flags["block_size"]
    if not block_wise and size != _BLOCK_SIZE:
        raise ValueError(f"--block_size {size} does nothing by itself; add --block_wise_quant")
    if flags["max_shard_size"] < 1:
        raise ValueError("--max_shard_size 0 holds nothing; give a size like 5GB")
    options = QuantizeOptions(
        algorithm=flags["quant_algo"],
        bits=int(flags["bit"]),
        dtype=flags["quant_dtype"],
        group_size=size if block_wise else None,
        symmetric=not flags["asymmetric"],
        ignore=tuple(flags["ignore"] or ()),
        head=flags["quant_lm_head"],
        embedding=flags["quant_embedding"],
        activations=flags["quant_mode"] == "act_and_weight_quant",
        samples=flags["calib_samples"],
        length=flags["calib_length"],
        act_order=flags["act_order"],
        damping=flags["damping"],
        smoothing=flags["smoothing_strength"],
        max_perplexity_increase=flags["max_perplexity_increase"],
    )
    if not options.calibrates and (given := _given(flags, _CALIBRATION)):
        raise ValueError(f"--quant_algo minmax needs no texts; leave out {given}, or give another --quant_algo")
    if flags["calib_data_file"] is not None and flags["calib_data"] != _DEFAULT_TEXTS:
        raise ValueError("--calib_data and --calib_data_file say the same; leave one of them out")
    if not options.uses_gptq and (given := _given(flags, _ALGORITHMS[:2])):
        raise ValueError(f"{given} is for gptq and smoothquant_gptq; leave it out")
    if options.algorithm not in ("smoothquant", "smoothquant_gptq") and (given := _given(flags, _ALGORITHMS[2:])):
        raise ValueError(f"{given} is for smoothquant and smoothquant_gptq; leave it out")
    return options


def texts_of(flags: Mapping[str, Any]) -> Sequence[CalibrationText]:
    """The texts to calibrate with. Raises :class:`~blade_llm.models.errors.ModelFilesError` for what is no text,
    ``OSError``."""
    file = flags["calib_data_file"]
    return given_texts(flags["calib_data"]) if file is None else read_texts(file.expanduser())


def _given(flags: Mapping[str, Any], some: Sequence[Flag]) -> str:
    """Those of the flags ``some`` that have another value than the default's, by name."""
    return ", ".join(flag.option for flag in some if flags[flag.name] != flag.default)
