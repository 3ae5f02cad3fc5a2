"""What the server prints when it starts: its arguments, where the time went, where the memory went, the address."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from blade_llm.cli.server_flags import GROUPS
from blade_llm.engine.messages import EngineReady
from blade_protocol.state import MemoryPlan


def print_arguments(flags: Mapping[str, Any]) -> None:
    """The banner: every flag whose value is not the default."""
    defaults = {flag.name: flag.default for group in GROUPS.values() for flag in group}
    changed = {name: value for name, value in flags.items() if value != defaults[name]}
    _print_table("Serving Arguments", [(name, _text(value)) for name, value in changed.items()])


def print_ready(ready: EngineReady, public: socket.socket, internal: socket.socket, total: float) -> None:
    """Start-up times in seconds (``total`` includes what is not listed), memory in bytes, and the addresses."""
    rows = [(stage, f"{seconds:8.2f} s") for stage, seconds in ready.timings.items()]
    computing = [("computes on", ready.device), ("computes in", ready.dtype)]
    _print_table("Start-up", [*computing, *rows, ("total", f"{total:8.2f} s")])
    if ready.state.memory is not None:
        _print_table("Memory plan", _memory_rows(ready.state.memory))
    print(f"Internal API at {_address(internal)}")
    print(f"Entrypoint API ready at {_address(public)}", flush=True)


def print_probes(public: socket.socket) -> None:
    """Where a machine that serves no requests answers probes."""
    print(f"Probes answered at {_address(public)}", flush=True)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _memory_rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    parts = [
        ("weights", plan.weights),
        ("activation peak", plan.activation_peak),
        ("graphs", plan.graphs),
        ("LoRA", plan.lora),
        ("images", plan.encoder),
        ("draft", plan.draft),
        ("KV cache", plan.kv_cache),
    ]
    rows = [(name, f"{size:>18,} bytes") for name, size in parts if size or name in ("weights", "KV cache")]
    return [
        *rows,
        ("KV blocks", f"{plan.kv_blocks:>18,} of {plan.kv_block_bytes:,} bytes = {plan.kv_tokens:,} tokens"),
        ("concurrency", f"{plan.concurrent_at_max_len:>18,.1f} requests of {plan.max_model_len:,} tokens"),
    ]


def _print_table(title: str, rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
    print("\n".join(lines), flush=True)


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
