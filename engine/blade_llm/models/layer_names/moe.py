"""The part of the tensor map that mixture-of-experts layers have."""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.spec.moe import MoESpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorPart


@dataclass(frozen=True, slots=True, kw_only=True)
class MoENames:
    """Modules of a mixture-of-experts layer, below its decoder layer; the defaults are Qwen's."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts.{}"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"
    correction_bias: str = "mlp.gate.e_score_correction_bias"
    up: tuple[str, str] = ("gate_proj", "up_proj")
    """Gate and up, of an expert and of the shared one."""
    down: str = "down_proj"
    fused: tuple[str, str, str] = ("mlp.gate", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    """Router, and one tensor for gate and up of all experts and one for down: transformers' own names, which
    ``save_pretrained(save_original_format=False)`` writes."""


def map_moe(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    prefix: str,
    spec: MoESpec,
    hidden: int,
    names: MoENames,
) -> None:
    """Add the layer at ``place``, whose modules begin with ``prefix``.

    Below ``place``: ``experts.I.up`` (gate and up) and ``experts.I.down``, ``shared.up`` and ``shared.down``. What is
    never quantised is among the tensors: ``router``, ``shared_gate``, ``correction_bias``.
    """
    count = spec.routing.num_experts
    router = f"{prefix}.{names.router}.weight"
    tensors[f"{place}.router"] = TensorPart(router, (count, hidden), float32=spec.float32_router)
    for index in range(count):
        module = f"{prefix}.{names.experts.format(index)}"
        _expert(linears, f"{place}.experts.{index}", module, spec.inner, hidden, names)
    if spec.shared is not None:
        _expert(linears, f"{place}.shared", f"{prefix}.{names.shared}", spec.shared.inner, hidden, names)
    if spec.correction_bias:
        bias = f"{prefix}.{names.correction_bias}"
        tensors[f"{place}.correction_bias"] = TensorPart(bias, (count,), float32=True)
    if spec.shared_gate:
        tensors[f"{place}.shared_gate"] = TensorPart(f"{prefix}.{names.shared_gate}.weight", (1, hidden))


def _expert(linears: dict[str, LinearMap], place: str, module: str, inner: int, hidden: int, names: MoENames) -> None:
    up = (LinearPart(f"{module}.{name}", inner, hidden) for name in names.up)
    linears[f"{place}.up"] = LinearMap(tuple(up))
    linears[f"{place}.down"] = LinearMap((LinearPart(f"{module}.{names.down}", hidden, inner),))


def map_fused(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    prefix: str,
    spec: MoESpec,
    hidden: int,
    names: MoENames,
) -> None:
    """As :func:`map_moe`, the places that lie elsewhere where one tensor has all experts: [experts, out, in]."""
    count = spec.routing.num_experts
    router, up, down = (f"{prefix}.{name}" for name in names.fused)
    tensors[f"{place}.router"] = TensorPart(f"{router}.weight", (count, hidden))
    for index in range(count):
        one_of = (index, count)
        linears[f"{place}.experts.{index}.up"] = LinearMap((LinearPart(up, 2 * spec.inner, hidden, one_of=one_of),))
        linears[f"{place}.experts.{index}.down"] = LinearMap((LinearPart(down, hidden, spec.inner, one_of=one_of),))
