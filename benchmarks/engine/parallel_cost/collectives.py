"""Seconds of an all-reduce by alpha and beta: NCCL's algorithms by its own model, and kernels of one's own over NVLink.

NCCL chooses algorithm and protocol by such a model, whose constants stand in its source (``baseLat``, ``hwLat``,
``llMaxBws`` in
https://github.com/NVIDIA/nccl/blob/b6475625fbcaa2c3c0e50eed2fa1255d7514d4a2/src/graph/tuning.cc). One-shot and two-shot
are as in vLLM (https://github.com/vllm-project/vllm/pull/2192): every rank reads what all others have and adds; or it
adds a part and then collects the other parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.engine.parallel_cost.hardware import NVLINK_SHARE, Gpu, Network

MICRO: Final = 1e-6


@dataclass(frozen=True)
class Protocol:
    """A protocol of NCCL: seconds before the first byte and of a hop, and its share of the bandwidth."""

    base: float
    nvlink_hop: float
    network_hop: float
    share: float
    most: float = float("inf")
    """Bytes a second on the bus at most."""


RING: Final = (
    Protocol(6.6 * MICRO, 0.6 * MICRO, 2.7 * MICRO, 1 / 4, 87.7e9),  # LL
    Protocol(14.0 * MICRO, 1.9 * MICRO, 4.0 * MICRO, 0.92),  # LL128
    Protocol(8.4 * MICRO, 3.4 * MICRO, 14.0 * MICRO, 1.0),  # Simple
)
TREE: Final = (
    Protocol(6.8 * MICRO, 0.6 * MICRO, 5.0 * MICRO, 0.92 / 3.8, 87.7e9),
    Protocol(14.0 * MICRO, 1.25 * MICRO, 8.5 * MICRO, 0.92 * 7 / 9),
)
NVLS_HOP: Final = 23 * MICRO
"""NVLink SHARP's latency; the switch adds, on one machine."""
NETWORK_OVERHEAD: Final = 1 * MICRO
"""Of each hop of a ring that goes through several machines."""

ONE_SHOT_ALPHA: Final = 5.5 * MICRO
TWO_SHOT_ALPHA: Final = 11 * MICRO
ONE_SHOT_SHARE: Final = 0.78
TWO_SHOT_SHARE: Final = 0.58
"""Fitted to the H100's times in https://github.com/vllm-project/vllm/pull/24111; the tests compare."""


def nccl_all_reduce(size: float, ranks: int, gpu: Gpu, network: Network, machines: int = 1) -> float:
    """Seconds of NCCL's best way to add ``size`` bytes of each of ``ranks``, in one CUDA graph."""
    if ranks == 1:
        return 0.0
    nvlink = gpu.nvlink * NVLINK_SHARE
    bus = nvlink if machines == 1 else min(nvlink, network.bandwidth)
    ways = [_ring(size, ranks, machines, bus, protocol) for protocol in RING]
    ways += [_tree(size, ranks, machines, bus, protocol) for protocol in TREE]
    if machines == 1 and ranks > 2:
        ways.append(NVLS_HOP + size / (bus * 5 / 6))
    return min(ways)


def own_all_reduce(size: float, ranks: int, gpu: Gpu) -> float:
    """Seconds of the better of one-shot and two-shot among ``ranks`` of one machine."""
    if ranks == 1:
        return 0.0
    others = ranks - 1
    return min(
        ONE_SHOT_ALPHA + others * size / (gpu.nvlink * ONE_SHOT_SHARE),
        TWO_SHOT_ALPHA + 2 * others / ranks * size / (gpu.nvlink * TWO_SHOT_SHARE),
    )


def all_gather(size: float, ranks: int, gpu: Gpu, network: Network, machines: int = 1) -> float:
    """Seconds until all have the ``size`` bytes of each of ``ranks``, by NCCL's ring."""
    if ranks == 1:
        return 0.0
    nvlink = gpu.nvlink * NVLINK_SHARE
    bus = nvlink if machines == 1 else min(nvlink, network.bandwidth)
    between = machines - 1
    return min(
        p.base
        + (ranks - 1 - between) * _hop(p, machines)
        + between * p.network_hop
        + (ranks - 1) * size / min(bus * p.share, p.most)
        for p in RING
    )


def send(size: float, network: Network) -> float:
    """Seconds of ``size`` bytes from one GPU to another of the next machine, over a network card of its own or, where
    there are fewer, its part of one."""
    return network.hop + size / (network.nic * min(1.0, network.nics / 8))


def _hop(protocol: Protocol, machines: int) -> float:
    return protocol.nvlink_hop if machines == 1 else max(protocol.nvlink_hop, NETWORK_OVERHEAD)


def _ring(size: float, ranks: int, machines: int, bus: float, protocol: Protocol) -> float:
    steps = 2 * (ranks - 1)
    between = 2 * machines if machines > 1 else 0
    latency = (steps - between) * _hop(protocol, machines) + between * protocol.network_hop
    return protocol.base + latency + size / (min(bus * protocol.share, protocol.most) * ranks / steps)


def _tree(size: float, ranks: int, machines: int, bus: float, protocol: Protocol) -> float:
    levels = (machines - 1).bit_length()
    latency = 2 * ((ranks // machines - 1) * protocol.nvlink_hop + levels * protocol.network_hop)
    return protocol.base + latency + size / (min(bus * protocol.share, protocol.most) / 2)
