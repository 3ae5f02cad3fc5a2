"""Which linear layers of a decoder layer share an input, and what computes it: where scales of that input can go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import LayerSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap


@dataclass(frozen=True, slots=True)
class NormBefore:
    """The norm whose results the input is."""

    place: str
    spec: NormSpec


@dataclass(frozen=True, slots=True)
class LinearBefore:
    """The linear layer of which some outputs are, but for products with what is not scaled, the input."""

    place: str
    first: int
    """The output, in the model's order, that is the first input; the others follow."""


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Linear layers that share an input."""

    places: tuple[str, ...]
    before: NormBefore | LinearBefore | None
    """None: nothing can take their scales."""
    plain: tuple[str, ...] = ()
    """Tensors, by their places, that are multiplied with the same input and are never quantised: routers."""
    why: str = ""
    """In words, why nothing can."""


def input_groups(spec: LayerSpec, tensors: TensorMap, index: int) -> list[InputGroup]:
    """Those of decoder layer ``index``, in the order in which they are computed."""
    place = f"layers.{index}"
    attention, mlp = f"{place}.attention", f"{place}.mlp"
    first, second, plain = [], _ups(spec, mlp), _plain(spec, tensors, mlp)
    groups: list[InputGroup] = []
    if isinstance(spec.attention, AttentionSpec):
        first.append(f"{attention}.qkv")
    else:
        first.append(f"{attention}.down")
    shared = spec.parallel and spec.mlp_norm is None
    before_first = _norm(tensors, f"{place}.attention_norm", spec.attention_norm)
    groups.append(_group((*first, *second) if shared else tuple(first), before_first, plain if shared else ()))
    if f"{attention}.query_up" in tensors.linears and not isinstance(spec.attention, AttentionSpec):
        norm = _norm(tensors, f"{attention}.query_norm", spec.attention.latent_norm)
        groups.append(_group((f"{attention}.query_up",), norm))
    groups.append(_output(spec, attention))
    if not shared:
        groups.append(_group(second, _norm(tensors, f"{place}.mlp_norm", spec.mlp_norm), plain))
    groups += _downs(spec, mlp)
    return groups


def _group(places: tuple[str, ...] | list[str], before: NormBefore | None, plain: tuple[str, ...] = ()) -> InputGroup:
    why = "" if before is not None else "no norm before it could take the scales"
    return InputGroup(tuple(places), before, plain, why)


def _norm(tensors: TensorMap, place: str, spec: NormSpec | None) -> NormBefore | None:
    return NormBefore(place, spec) if spec is not None and f"{place}.weight" in tensors.tensors else None


def _ups(spec: LayerSpec, mlp: str) -> list[str]:
    if not isinstance(spec.mlp, MoESpec):
        return [f"{mlp}.up"]
    shared = [f"{mlp}.shared.up"] if spec.mlp.shared is not None else []
    return [f"{mlp}.experts.{expert}.up" for expert in spec.mlp.experts] + shared


def _plain(spec: LayerSpec, tensors: TensorMap, mlp: str) -> tuple[str, ...]:
    return tuple(place for place in (f"{mlp}.router", f"{mlp}.shared_gate") if place in tensors.tensors)


def _output(spec: LayerSpec, attention: str) -> InputGroup:
    heads, place = spec.attention, f"{attention}.output"
    if not isinstance(heads, AttentionSpec):
        return InputGroup((place,), None, why="latent attention makes its input of matrices that are not quantised")
    if heads.num_kv_heads != heads.num_heads:
        return InputGroup((place,), None, why="several query heads share values")
    return InputGroup((place,), LinearBefore(f"{attention}.qkv", heads.query_size + heads.kv_size))


def _downs(spec: LayerSpec, mlp: str) -> Iterator[InputGroup]:
    if not isinstance(spec.mlp, MoESpec):
        gated, inner = spec.mlp.gated, spec.mlp.inner
        before = LinearBefore(f"{mlp}.up", inner) if gated else None
        yield InputGroup((f"{mlp}.down",), before, why="" if gated else "without a gate, scales do not pass through")
        return
    for expert in spec.mlp.experts:
        place = f"{mlp}.experts.{expert}"
        yield InputGroup((f"{place}.down",), LinearBefore(f"{place}.up", spec.mlp.inner))
    if spec.mlp.shared is not None:
        yield InputGroup((f"{mlp}.shared.down",), LinearBefore(f"{mlp}.shared.up", spec.mlp.shared.inner))


def stored_outputs(linear: LinearMap, first: int, count: int) -> list[tuple[LinearPart, Tensor, slice]]:
    """Where the checkpoint has ``count`` outputs of ``linear``, in the model's order from ``first`` on: parts, the rows
    of each ([rows] int64), and which of the ``count`` these are."""
    found, begin = [], 0
    for part in linear.parts:
        low, high = max(first, begin), min(first + count, begin + part.wanted)
        if low < high:
            rows = range(part.outputs) if part.rows is None else part.rows
            stored = torch.tensor(list(rows[low - begin : high - begin]), dtype=torch.int64)
            found.append((part, stored, slice(low - first, high - first)))
        begin += part.wanted
    return found
