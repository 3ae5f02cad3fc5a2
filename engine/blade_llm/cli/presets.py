"""``--preset``: several flags at once, for a use of the server. A flag that is given wins over the preset's.

The values follow BladeLLM's guide where it has any (share of memory and ``max_num_seqs`` by use), in flags that depend
on no model: lengths and quantised weights stay for the user to choose. ``docs/tuning.md`` says why each is as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blade_llm.cli.flags import FlagParser
from blade_llm.speculative_options import SPECULATIVE_FLAGS


@dataclass(frozen=True, slots=True)
class Preset:
    """Flags for a use."""

    use: str
    flags: Mapping[str, Any]
    generates: bool = False
    """It is about generated text alone."""


PRESETS: Final[Mapping[str, Preset]] = {
    "latency": Preset(
        "few requests, each as fast as can be: small batches, short prefill chunks, draft tokens from equal text",
        {"max_num_seqs": 16, "ragged_flash_max_batch_tokens": 512, "decode_algo": "ngram"},
        generates=True,
    ),
    "throughput": Preset(
        "most tokens a second: large batches, and more memory for the KV cache",
        {"max_num_seqs": 256, "ragged_flash_max_batch_tokens": 4096, "max_gpu_memory_utilization": 0.95},
    ),
    "longContext": Preset(
        "long prompts: keys and values in 8 bits, few requests, long prefill chunks",
        {
            "kv_cache_quant": "int8",
            "max_num_seqs": 16,
            "ragged_flash_max_batch_tokens": 4096,
            "max_gpu_memory_utilization": 0.95,
        },
        generates=True,
    ),
    "chat": Preset(
        "many conversations with steady streams: medium batches and prefill chunks",
        {"max_num_seqs": 128, "ragged_flash_max_batch_tokens": 1024},
        generates=True,
    ),
    "batch": Preset(
        "jobs that nobody watches: large batches, and a queue that takes all of a job",
        {
            "max_num_seqs": 256,
            "ragged_flash_max_batch_tokens": 8192,
            "max_waiting_requests": 65536,
            "max_gpu_memory_utilization": 0.95,
        },
    ),
    "lowMemory": Preset(
        "little memory: few requests, short prefill chunks, keys and values in 8 bits, no graphs of steps with prefill",
        {
            "max_num_seqs": 8,
            "ragged_flash_max_batch_tokens": 512,
            "kv_cache_quant": "int8",
            "cuda_graph_max_tokens": 0,
            "max_gpu_memory_utilization": 0.8,
        },
    ),
    "deterministic": Preset(
        "the same tokens whatever else is in the batch, at some cost",
        {"deterministic": True},
    ),
}
_GROUPS: Final[Mapping[str, Collection[str]]] = {
    "decode_algo": SPECULATIVE_FLAGS,
    "cuda_graph_max_tokens": ("disable_cuda_graph", "cuda_graph_token_sizes"),
}
"""Flags by which a user says the same: where one of them is given, the preset leaves it all to them."""


def apply_preset(flags: dict[str, Any], given: Collection[str]) -> str | None:
    """Set in ``flags`` what ``flags["preset"]`` sets and is not ``given``; of a program that has only some of the
    flags, those. Returns what was set, in words; None without a preset.

    Raises ``ValueError`` for a preset that does not go together with ``flags``.
    """
    if (name := flags["preset"]) is None:
        return None
    preset = PRESETS[name]
    if preset.generates and flags.get("task", "generate") != "generate":
        raise ValueError(
            f"--preset {name} is for generated text, which --task {flags['task']} has none of; leave it out"
        )
    if name == "deterministic" and not flags.get("deterministic", True) and "deterministic" in given:
        raise ValueError("--preset deterministic and --deterministic=false contradict each other; leave out one")
    chosen = {
        flag: value
        for flag, value in preset.flags.items()
        if flag in flags and not {flag, *_GROUPS.get(flag, ())} & set(given)
    }
    flags.update(chosen)
    return f"preset {name} sets: {' '.join(map(_word, chosen.items())) or 'nothing, all of it is given'}"


def use_preset(parser: FlagParser, flags: dict[str, Any]) -> str | None:
    """:func:`apply_preset` of what ``parser`` has read; exits with 2 where that does not go together."""
    try:
        return apply_preset(flags, parser.given)
    except ValueError as error:
        parser.error(str(error))


def _word(item: tuple[str, Any]) -> str:
    name, value = item
    return f"--{name}" if value is True else f"--{name} {value}"
