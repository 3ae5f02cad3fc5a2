"""The estimate as text for people and as a document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blade_llm.fit.advice import Change
from blade_llm.fit.estimate import Device, Estimate

NOTE = "upper bounds by the roofline model, from the makers' data sheets: no measurement"


@dataclass(frozen=True, slots=True)
class Price:
    """What a GPU costs, as the caller says."""

    per_gpu_hour: float
    currency: str

    def per_million_tokens(self, found: Estimate) -> float | None:
        """Money for a million output tokens at the estimated speed, which is a lower bound; None without one."""
        if found.speed is None:
            return None
        return self.per_gpu_hour * found.ranks / 3600 / found.speed.tokens_per_second * 1e6


def document(
    model: str, device: Device, found: Estimate, change: Sequence[Change], price: Price | None
) -> dict[str, Any]:
    """All of it, for JSON: bytes, tokens, seconds."""
    result = dataclasses.asdict(found)
    speed = result.pop("speed")
    where: dict[str, Any] = {"memory": device.limit, "device": "cpu"}
    if device.gpu is not None:
        where = {"device": device.gpu.name, "memory": device.gpu.memory.total, "count": found.ranks}
    result = {"model": model, "where": where, **result, "change": [dataclasses.asdict(each) for each in change]}
    if speed is not None:
        result["speed"] = {"note": NOTE, **speed}
    if price is not None and (money := price.per_million_tokens(found)) is not None:
        hour = price.per_gpu_hour * found.ranks
        result["cost"] = {"currency": price.currency, "per_hour": hour, "per_million_tokens_at_least": money}
    return result


def text(model: str, device: Device, found: Estimate, change: Sequence[Change], price: Price | None) -> str:
    """A page of lines for a terminal."""
    return "\n".join(_lines(model, device, found, change, price))


def _lines(model: str, device: Device, found: Estimate, change: Sequence[Change], price: Price | None) -> Iterator[str]:
    where = f"CPU with {_gib(device.limit)}" if device.gpu is None else f"{found.ranks} x {device.gpu.name}"
    each = " each" if found.ranks > 1 else ""
    memory = "" if device.gpu is None else f" (about {device.gpu.memory_gib:g} GiB{each})"
    yield f"{model}: {found.architecture} in {found.dtype} on {where}{memory}"
    parts = [
        ("weights", found.weights),
        ("activations, at most", found.activations),
        ("CUDA graphs, at most", found.graphs),
        ("adapters", found.adapters),
        ("draft model", found.draft),
        ("vision tower, images", found.vision),
        ("processes", found.runtime),
        ("KV cache", found.kv_cache),
    ]
    if found.ranks > 1:
        yield f"Each of {found.ranks} ranks:"
    for name, size in parts:
        if size:
            yield f"  {name:<21} {_gib(size):>11}"
    yield f"  {'bytes a token':<21} {found.kv_token:>11,}"
    if found.kv_tokens:
        yield f"  {'KV tokens':<21} {found.kv_tokens:>11,}"
        yield f"  {'concurrency':<21} {found.concurrency:>11,.1f} requests of {found.context:,} tokens"
        yield f"  {'longest request':<21} {found.max_model_len:>11,} tokens"
    yield "It fits." if found.fits else f"It does not fit: {found.verdict}"
    if change:
        yield "It fits with any of these:"
        for one in change:
            served = f"{one.concurrency:,.1f} requests at once, {one.kv_tokens:,} KV tokens"
            yield f"  {one.flags:<40} {served}, up to {one.max_model_len:,} tokens each"
    elif not found.fits:
        yield "No flag alone makes it fit: take a larger GPU, more memory or a smaller model."
    if (speed := found.speed) is not None:
        yield f"Speed ({NOTE}):"
        yield (
            f"  decode  {speed.tokens_per_second:,.0f} tokens/s, {speed.tpot_ms:,.2f} ms a token, of {speed.batch} "
            f"requests with {speed.context:,} tokens each"
        )
        yield f"  prefill {speed.prefill_tokens_per_second:,.0f} tokens/s"
    if price is not None and (money := price.per_million_tokens(found)) is not None:
        yield (
            f"Cost at {price.per_gpu_hour:g} {price.currency} a GPU and hour: at least {money:,.4g} {price.currency} a "
            "million output tokens"
        )


def _gib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"
