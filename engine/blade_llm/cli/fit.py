"""``blade_llm_fit``: does a model fit a GPU or a memory limit, how many requests at once, and which flag to change.

It reads ``config.json`` alone, on a machine that need not have any of it.

The flags about memory are the server's own, and so is the plan.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from blade_llm.cache.memory_limit import memory_limit_bytes
from blade_llm.cli.flags import Flag, FlagParser, byte_size, positive, tokens
from blade_llm.cli.presets import use_preset
from blade_llm.cli.server_flags import GROUPS, MEMORY_FIELDS, PRESET, memory_fields
from blade_llm.config import EngineConfig
from blade_llm.fit.advice import changes
from blade_llm.fit.estimate import Device, estimate
from blade_llm.fit.gpus import NAMES, find_gpu
from blade_llm.fit.report import Price, document, text
from blade_llm.hub.configuration import configuration_folder
from blade_llm.models.errors import ModelFilesError
from blade_llm.speculative_options import SPECULATIVE_FLAGS, speculative_from_flags

PROGRAM: Final = "blade_llm_fit"


def _price(value: str) -> float:
    """A finite amount of money of at least 0."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{value!r} is not an amount of money of at least 0, like 2.5")
    return number


_FLAGS: Final = (
    Flag(name="model", help="model folder or hub id; only its config.json is read", required=True, metavar="MODEL"),
    Flag(name="revision", help="branch, tag or commit of a hub model"),
    Flag(name="gpu", help=f"kind of GPU, of which data sheets are known: {', '.join(NAMES)} (default: CPU)"),
    Flag(
        name="gpus",
        help="GPUs, which the model is divided among: tensor_parallel_size times pipeline_parallel_size",
        kind=positive,
    ),
    Flag(name="memory", help="memory on CPU, like 24Gi (default: this machine's, or container's)", kind=byte_size),
    Flag(name="context", help="tokens of a typical request, prompt and answer (default: the longest)", kind=tokens),
    Flag(name="price", help="money for one GPU an hour, for the cost of tokens", kind=_price, metavar="NUMBER"),
    Flag(name="currency", help="of the price", default="USD", metavar="CODE"),
    Flag(name="output", help="form of the result", default="text", choices=("text", "json"), aliases=("-o",)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the estimate. Returns 0 where it fits, 1 where not or where nothing can be said; wrong flags exit with
    2."""
    parser = _parser()
    flags = parser.parse(argv)
    use_preset(parser, flags)
    logging.getLogger("blade_llm").addHandler(logging.NullHandler())  # what planning remarks is in the report
    problem = _problem(flags)
    if problem is not None:
        parser.error(problem)
    try:
        with tempfile.TemporaryDirectory(prefix="blade_llm_fit-") as folder:
            return _run(flags, Path(folder))
    except ValueError as error:  # all that is wrong with a model, or with flags for it, is one
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1


def _run(flags: Mapping[str, Any], scratch: Path) -> int:
    device = Device(None if flags["gpu"] is None else find_gpu(flags["gpu"]), flags["memory"] or memory_limit_bytes())
    config = _engine_config(flags, scratch)
    found = estimate(config, device, flags["context"])
    change = [] if found.fits else changes(config, device, flags["context"])
    price = None if flags["price"] is None else Price(flags["price"], flags["currency"])
    show = (flags["model"], device, found, change, price)
    print(json.dumps(document(*show), indent=2) if flags["output"] == "json" else text(*show))
    return 0 if found.fits else 1


def _problem(flags: Mapping[str, Any]) -> str | None:
    """What does not go together."""
    if flags["gpu"] is None:
        if flags["price"] is not None:
            return "--price is for a GPU and hour; give --gpu, too"
        if flags["gpus"] is not None:
            return f"--gpus {flags['gpus']} needs the kind: --gpu, one of {', '.join(NAMES)}"
        return None
    if flags["memory"] is not None:
        return "--memory is for CPUs; leave it out with --gpu"
    try:
        find_gpu(flags["gpu"])
    except ValueError as error:
        return f"--gpu: {error}"
    stages, given = flags["pipeline_parallel_size"], flags["gpus"]
    if given is not None and given % stages:
        return f"--gpus {given} cannot be divided into {stages} stages (--pipeline_parallel_size)"
    if given is not None and flags["tensor_parallel_size"] not in (1, given // stages):
        return f"--gpus {given} and --tensor_parallel_size {flags['tensor_parallel_size']} contradict each other"
    return None


def _engine_config(flags: Mapping[str, Any], scratch: Path) -> EngineConfig:
    folder = configuration_folder(flags["model"], scratch / "model", revision=flags["revision"])
    speculative = speculative_from_flags(flags, lambda name: configuration_folder(name, scratch / "draft"))
    fields = memory_fields(flags)
    if flags["gpus"] is not None:
        fields["tensor_parallel_size"] = flags["gpus"] // flags["pipeline_parallel_size"]
    if not (folder / "config.json").is_file():
        raise ModelFilesError(f"{folder} has no config.json; it is not in the Hugging Face layout")
    return EngineConfig(model=str(folder), served_names=(), speculative=speculative, **fields)


def _parser() -> FlagParser:
    server = [flag for group in GROUPS.values() for flag in group]
    memory = (PRESET, *(flag for flag in server if flag.name in {*MEMORY_FIELDS, *SPECULATIVE_FLAGS}))
    parser = FlagParser(
        PROGRAM,
        "Say from a model's config.json whether it fits a GPU or a memory limit, and what it can serve there.",
        [("fit", _FLAGS), ("the server's flags", memory)],
        positional="model",
    )
    parser.usage = "%(prog)s MODEL [--gpu NAME [--gpus N] | --memory BYTES] [flags]"
    parser.epilog = (
        "Exit status: 0 when it fits, 1 when it does not or the model cannot be read, 2 for wrong flags. Memory on CPU "
        "is the engine's own plan; on GPUs activations and graphs are upper estimates, and speeds are bounds by the "
        "roofline model."
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
