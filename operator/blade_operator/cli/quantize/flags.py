"""Flags of ``blade_llm_quantize`` that ``quantize`` passes on: the command's own names, checked before a Job is made.

The command itself is not imported: the operator's image has no torch. A test compares both.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any, Final

SWITCH: Final = "BOOL"
NUMBER: Final = "N"
TOKENS: Final = "TOKENS"
SHARE: Final = "NUMBER"
SIZE: Final = "BYTES"
_SIZE: Final = re.compile(r"\d+(\.\d+)?\s*([kmgt]i?)?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QuantizeFlag:
    """One flag."""

    name: str
    help: str
    kind: str = "TEXT"
    """What its value is, as ``--help`` shows it."""
    choices: tuple[str, ...] = ()
    many: bool = False
    """Takes one or more values."""
    aliases: tuple[str, ...] = ()


FLAGS: Final = (
    QuantizeFlag(
        "quant_algo",
        "how weights are chosen (default minmax)",
        choices=("minmax", "gptq", "awq", "smoothquant", "smoothquant+", "smoothquant_gptq"),
    ),
    QuantizeFlag(
        "quant_mode",
        "what is quantised (default weight_only_quant)",
        choices=("weight_only_quant", "act_and_weight_quant"),
    ),
    QuantizeFlag("bit", "bits a weight (default 8)", choices=("8", "4", "3")),
    QuantizeFlag("quant_dtype", "integers, or floats (default int)", choices=("int", "fp8")),
    QuantizeFlag("block_wise_quant", "a scale for each --block_size inputs", SWITCH),
    QuantizeFlag("block_size", "inputs that share a scale (default 64)", NUMBER),
    QuantizeFlag("asymmetric", "integers with a zero point for each scale", SWITCH),
    QuantizeFlag("ignore", "linear layers to leave as they are", "NAME", many=True),
    QuantizeFlag("quant_lm_head", "quantise the output matrix, too", SWITCH),
    QuantizeFlag("quant_embedding", "quantise the embedding table, too", SWITCH),
    QuantizeFlag("tensor_parallel_size", "ranks that the folder was split for", NUMBER, aliases=("-tp",)),
    QuantizeFlag("split_output", "the result is a folder for each rank", SWITCH),
    QuantizeFlag("max_shard_size", "largest weight file (default 5GB)", SIZE),
    QuantizeFlag("calib_data", "texts to calibrate with", many=True),
    QuantizeFlag("calib_data_file", "JSON lines to calibrate with: pvc://CLAIM/FILE, or a path in the pod", "FILE"),
    QuantizeFlag("calib_samples", "texts to use at most", NUMBER),
    QuantizeFlag("calib_length", "tokens of each text to use at most", TOKENS),
    QuantizeFlag("max_perplexity_increase", "leave layers as they are so that perplexity grows by no more", SHARE),
    QuantizeFlag("act_order", "gptq rounds inputs with large activations first", SWITCH),
    QuantizeFlag("damping", "share of the mean of the Hessian's diagonal that gptq adds to it", SHARE),
    QuantizeFlag("smoothing_strength", "smoothquant's exponent", SHARE),
    QuantizeFlag("cpu_offload", "hidden states of calibration lie in files beside the output", SWITCH),
    QuantizeFlag("experimental_pad", "accepted where nothing needs padding", SWITCH),
)
CALIBRATION: Final = "calib_data_file"
"""The flag whose value may be on a claim."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, spelled with underscores or dashes; one that is not given is absent from the options."""
    group = parser.add_argument_group("flags of blade_llm_quantize")
    for flag in FLAGS:
        spelled = {f"--{flag.name}": None, f"--{flag.name.replace('_', '-')}": None, **dict.fromkeys(flag.aliases)}
        more: dict[str, Any] = {"metavar": flag.kind, "type": _TYPES.get(flag.kind, str)}
        if flag.choices:
            more = {"choices": flag.choices}
        elif flag.kind == SWITCH:
            more |= {"nargs": "?", "const": "true"}
        elif flag.many:
            more |= {"nargs": "+"}
        group.add_argument(*spelled, dest=flag.name, default=argparse.SUPPRESS, help=flag.help, **more)


def words_of(options: argparse.Namespace) -> tuple[str, ...]:
    """What was given, as words of the command, but for the file of calibration texts.

    Raises:
        ValueError: flags that do not go together.
    """
    given = {flag.name: getattr(options, flag.name) for flag in FLAGS if hasattr(options, flag.name)}
    if "block_size" in given and given.get("block_wise_quant") != "true":
        raise ValueError(f"--block_size {given['block_size']} does nothing by itself; add --block_wise_quant")
    if given.get("quant_dtype") == "fp8" and given.get("bit", "8") != "8":
        raise ValueError(f"--quant_dtype fp8 has 8 bits, not {given['bit']}; leave --bit out")
    words: list[str] = []
    for flag in FLAGS:
        if flag.name not in given or flag.name == CALIBRATION:
            continue
        value = given[flag.name]
        if flag.kind == SWITCH:
            words.append(f"--{flag.name}={value}")
        else:
            words += [f"--{flag.name}", *(value if flag.many else [value])]
    return tuple(words)


def _boolean(text: str) -> str:
    for value, names in (("true", ("true", "1", "yes", "on")), ("false", ("false", "0", "no", "off"))):
        if text.lower() in names:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _number(text: str) -> str:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return text


def _tokens(text: str) -> str:
    if not re.fullmatch(r"[0-9]*[1-9][0-9]*(\.[0-9]+)?[kKmM]?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens like 2048 or 2k")
    return text


def _share(text: str) -> str:
    try:
        float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    return text


def _size(text: str) -> str:
    if not _SIZE.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 5GB or 4GiB")
    return text


_TYPES: Final = {SWITCH: _boolean, NUMBER: _number, TOKENS: _tokens, SHARE: _share, SIZE: _size}
