"""``fit``: does a model fit a GPU or a memory limit, and which flag to change; from its ``config.json`` alone.

The arithmetic is the engine's (``blade_llm_fit``), which runs as a program of its own: the operator does without the
engine, whose plan a second copy would only resemble.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from typing import Final

from blade_operator.cli.errors import CommandError
from blade_operator.cli.manifests import dump

PROGRAM: Final = "blade_llm_fit"
_MODULE: Final = "blade_llm.cli.fit"
_OWN: Final = {
    "revision": ("REVISION", "branch, tag or commit of a hub model"),
    "gpu": ("NAME", "kind of GPU, like H100 (default: CPU)"),
    "gpus": ("N", "how many of them one engine gets"),
    "memory": ("BYTES", "memory on CPU, like 24Gi (default: this machine's)"),
    "context": ("N", "tokens of a typical request, prompt and answer (default: the longest)"),
    "price": ("NUMBER", "money for one GPU an hour, for the cost of tokens"),
    "currency": ("CODE", "of the price (default: USD)"),
}
_ENGINE: Final = {
    "preset": ("NAME", "as spec.engine.preset"),
    "max_model_len": ("N", "as spec.engine.contextLength"),
    "max_num_seqs": ("N", "as spec.engine.maxNumSeqs"),
    "kv_cache_bytes": ("BYTES", "as spec.engine.kvCacheBytes"),
    "encoder_cache_bytes": ("BYTES", "as spec.engine.vision.encoderCacheBytes"),
    "max_gpu_memory_utilization": ("SHARE", "as spec.engine.memoryFraction"),
    "dtype": ("TYPE", "as spec.engine.dtype"),
    "quant": ("METHOD", "as spec.model.quantization: int8, int4 or w8a8"),
    "kv_cache_quant": ("METHOD", "as spec.model.quantization.kvCache: int8, int4, ..."),
}
"""The usual ones of ``blade_llm_server``'s flags."""
_ALIASES: Final = {"quant": ("--quantization",)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the model, and flags spelled with underscores or dashes."""
    parser.add_argument("uri", metavar="URI", help="hf://ORG/NAME, a folder, or any other URI as in spec.model.uri")
    for title, flags in (("where, and for what", _OWN), ("the engine's flags", _ENGINE)):
        group = parser.add_argument_group(title)
        for name, (metavar, help_text) in flags.items():
            spelled = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}", *_ALIASES.get(name, ())))
            group.add_argument(*spelled, dest=name, metavar=metavar, help=help_text)
    parser.add_argument("-o", "--output", choices=["text", "json", "yaml"], default="text", help="output format")
    parser.add_argument(
        "--engine_flags", "--engine-flags", metavar="FLAGS", default="", help=f"others of {PROGRAM}, as one word"
    )


def run(options: argparse.Namespace) -> int:
    """Print the estimate; returns 0 where the model fits, 1 where it does not, 2 for flags that are not understood.

    Raises:
        CommandError: the program is not here, or the model is on a claim.
    """
    if options.uri.startswith("pvc://"):
        raise CommandError(f"{options.uri}: a claim is read in its cluster alone; give the folder, or where it is from")
    form = "text" if options.output == "text" else "json"
    given = {name: value for name in (*_OWN, *_ENGINE) if (value := getattr(options, name)) is not None}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    command = [*_program(), "--model", options.uri, *words, *_split(options.engine_flags), "--output", form]
    if options.output != "yaml":
        return subprocess.run(command, check=False).returncode
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if ran.stdout.strip():
        print(dump(json.loads(ran.stdout)), end="")
    return ran.returncode


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise CommandError(f"--engine_flags {flags}: {error}") from None


def _program() -> list[str]:
    """The words that start it."""
    if importlib.util.find_spec("blade_llm") is not None:
        return [sys.executable, "-m", _MODULE]
    if found := shutil.which(PROGRAM):
        return [found]
    raise CommandError(
        f"{PROGRAM} is not here: install the engine (pip install 'bladellm[engine]'), or run it in the engine image "
        f"(docker run --rm IMAGE {PROGRAM} MODEL ...)"
    )
