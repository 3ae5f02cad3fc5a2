"""How much memory there is, and what a KV cache of a given size holds.

The server, the runner and ``blade_llm_check`` plan with the same functions, so that what the check promises is what the
engine does. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.models.families import expected_tensors

BLOCK_SIZE: Final = 16
"""Tokens in one KV block."""
DEFAULT_KV_SHARE: Final = 4
"""Without ``--kv_cache_bytes`` the cache gets one part in this many of the memory limit."""
BYTES_PER_WEIGHT: Final[Mapping[str, float]] = {"int8": 1.0, "int4": 0.5625}
"""Of quantised matrices; int4 with a 16-bit scale for each 32 weights."""
SCORED_AT_ONCE: Final = 64
"""Positions of prompts whose logits exist at the same time, where log-probabilities of a prompt are asked for."""


@dataclass(frozen=True, slots=True)
class KvPlan:
    """What a KV cache holds. ``blocks`` times ``block_bytes`` is at most the bytes it was given."""

    block_size: int
    """Tokens in a block."""
    block_bytes: int
    blocks: int
    max_model_len: int

    @property
    def tokens(self) -> int:
        """Tokens that fit in all blocks."""
        return self.blocks * self.block_size

    @property
    def concurrent_at_max_len(self) -> float:
        """How many requests of ``max_model_len`` tokens fit at once."""
        return self.blocks / self.blocks_of(self.max_model_len)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` takes."""
        return -(-tokens // self.block_size)


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may use: the least of the machine's memory and its cgroup's limits (v2 and v1, with parents).

    ``root`` is where ``/proc`` and ``/sys`` are found (tests put their own there).
    """
    limits = [_mem_total(root)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits_upwards(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits)


def default_kv_cache_bytes(replicas: int = 1, limit: int | None = None) -> int:
    """The KV cache on CPU without ``--kv_cache_bytes``: a quarter of the memory limit, divided among the replicas."""
    return (memory_limit_bytes() if limit is None else limit) // DEFAULT_KV_SHARE // replicas


def kv_block_bytes(config: ModelConfig, dtype: DTypeName, block_size: int = BLOCK_SIZE) -> int:
    """Bytes of one block of keys and values in all layers."""
    return config.kv_bytes_per_token(dtype) * block_size


def raise_kv_cache_bytes(needed: int) -> str:
    """What gives a KV cache of ``needed`` bytes: the flag that says its size."""
    return f"raise --kv_cache_bytes to {needed}"


def plan_blocks(
    config: ModelConfig,
    dtype: DTypeName,
    *,
    kv_cache_bytes: int,
    max_model_len: int | None = None,
    block_size: int = BLOCK_SIZE,
    enlarge: Callable[[int], str] = raise_kv_cache_bytes,
) -> KvPlan:
    """Divide ``kv_cache_bytes`` into blocks; ``max_model_len`` is the model's own length when not given.

    ``enlarge`` says what to change for a cache of so many bytes.

    Raises :class:`NotEnoughMemoryError` when not even one request of ``max_model_len`` tokens fits, with the two values
    that would do, and ``ValueError`` when ``max_model_len`` is more than the model was made for.
    """
    length = max_model_len or config.max_position_embeddings
    if length > config.max_position_embeddings:
        raise ValueError(
            f"--max_model_len {length} is more than the model's own length; "
            f"lower it to at most {config.max_position_embeddings} ('max_position_embeddings' in config.json)"
        )
    block_bytes = kv_block_bytes(config, dtype, block_size)
    plan = KvPlan(
        block_size=block_size, block_bytes=block_bytes, blocks=kv_cache_bytes // block_bytes, max_model_len=length
    )
    needed = plan.blocks_of(length)
    if plan.blocks < needed:
        shorter = f", or lower --max_model_len to {plan.tokens}" if plan.blocks else ""
        raise NotEnoughMemoryError(
            f"one request of {length} tokens needs {needed * block_bytes} bytes of KV cache ({needed} blocks), "
            f"{kv_cache_bytes} bytes hold {plan.blocks}; {enlarge(needed * block_bytes)}{shorter}"
        )
    return plan


def weight_bytes(config: ModelConfig, dtype: DTypeName, quant: str = "none") -> int:
    """Estimate of the weights' bytes on CPU, where the output matrix is packed beside the table it is tied to.

    ``quant``: ``none``, ``int8`` or ``int4``, of all matrices but the embedding table.
    """
    shapes = expected_tensors(config)
    table = shapes["model.embed_tokens.weight"]
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1) + math.prod(table)
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    if not config.tie_word_embeddings:
        matrices -= math.prod(table)
    return vectors * DTYPE_BYTES[dtype] + int(matrices * BYTES_PER_WEIGHT.get(quant, DTYPE_BYTES[dtype]))


def activation_bytes(config: ModelConfig, dtype: DTypeName, *, max_batch_tokens: int, max_num_seqs: int) -> int:
    """Upper estimate of the working memory of one step, in bytes.

    Per token of the budget: residual, normed input, attention output, q, k, v, and the three arrays of the gated MLP,
    of one layer (layers reuse it). Per sequence, or per position of a prompt that is scored: a row of logits, its noise
    and its probabilities in fp32.
    """
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    per_token = (4 * config.hidden_size + qkv + 3 * config.intermediate_size) * DTYPE_BYTES[dtype]
    rows = max(max_num_seqs, min(SCORED_AT_ONCE, max_batch_tokens))
    return max_batch_tokens * per_token + rows * 3 * config.vocab_size * 4


def _mem_total(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemTotal; give --kv_cache_bytes")


def _limits_upwards(base: Path, path: str, name: str) -> list[int]:
    """The limits in a cgroup and its parents; ``max`` and, in v1, a huge number mean none (the caller takes the least).

    Inside a container ``path`` can be the host's view, which does not exist there: the root then holds our limit.
    """
    folder = base / path.lstrip("/")
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]
    texts = (_read(folder / name).strip() for folder in folders)
    return [int(text) for text in texts if text.isdigit()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
