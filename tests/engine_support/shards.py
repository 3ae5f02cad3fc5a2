"""The ranks' parts of a model put together again, by the rules that a reader of Megatron-LM would write down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.models.parameters import Parameters
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.slices import Slice
from blade_llm.spec.tensors import TensorMap


class Numbered:
    """Tensors of which each element is its own number; implements
    :class:`~blade_llm.models.weight_source.WeightSource`."""

    def __init__(self, tensors: TensorMap) -> None:
        self.shapes = tensors.expected()

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    def stored(self, name: str) -> Tensor:
        return self.tensor(name)

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        shape = self.shapes[name]
        tensor = torch.arange(math.prod(shape), dtype=dtype or torch.float64).view(shape)
        block = block or Slice()
        if block.index is not None:
            tensor = tensor[block.index]
        for dim, wanted in enumerate((block.rows, block.columns)):
            if wanted is not None:
                tensor = tensor.narrow(dim, wanted.start, len(wanted))
        return tensor.contiguous()

    def stacked(self, names: list[str]) -> Tensor:
        return torch.cat([self.tensor(name) for name in names])

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return make()

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        return make()


def together(place: str, whole: DecoderSpec, parts: Sequence[Tensor]) -> Tensor:
    """What the parts of all ranks, as each reads them at ``place``, are of the tensor that ``whole`` has there. Of a
    bias, too. Fails where a tensor that each rank has differs between ranks."""
    size = len(parts)
    if place in ("embedding", "head"):
        return torch.cat(list(parts))
    if not place.startswith("layers."):
        return the_same(parts)
    _, index, name = place.split(".", 2)
    layer = whole.layers[int(index)]
    attention, mlp = layer.attention, layer.mlp
    if name in ("attention.query_up", "attention.kv_up"):
        return torch.cat(list(parts))
    if name == "attention.qkv":
        widths = [attention.num_heads // size, max(1, attention.num_kv_heads // size)]
        queries, own = (width * attention.head_dim for width in widths)
        q, k, v = zip(*(part.split([queries, own, own]) for part in parts), strict=True)
        sharing = max(1, size // attention.num_kv_heads)
        return torch.cat([*q, *owned_once(k, sharing), *owned_once(v, sharing)])
    if attention.head_norm_whole and name == "attention.q_norm.weight":
        return torch.cat(list(parts))
    if attention.head_norm_whole and name == "attention.k_norm.weight":
        return torch.cat(owned_once(parts, max(1, size // attention.num_kv_heads)))
    if name == "attention.down":
        assert isinstance(attention, LatentAttentionSpec)
        if attention.query_rank:
            return the_same(parts)
        kept = attention.latent_dim + attention.rope_dim
        return torch.cat([*(part[:-kept] for part in parts), the_same([part[-kept:] for part in parts])])
    if name.endswith(".up"):
        halves = 2 if not isinstance(mlp, MLPSpec) or mlp.gated else 1
        return torch.cat(
            [piece for half in zip(*(part.chunk(halves) for part in parts), strict=True) for piece in half]
        )
    if name.endswith((".down", "attention.output")):
        return torch.cat(list(parts), dim=1)
    return the_same(parts)


def the_same(parts: Sequence[Tensor]) -> Tensor:
    """The one that all are."""
    assert all(torch.equal(part, parts[0]) for part in parts)
    return parts[0]


def owned_once(parts: Sequence[Tensor], sharing: int) -> list[Tensor]:
    """One of each ``sharing`` neighbours, which have the same."""
    return [the_same(parts[first : first + sharing]) for first in range(0, len(parts), sharing)]


def assert_divided(decoder: DecoderSpec, whole: Parameters, ranks: Sequence[Parameters]) -> None:
    """All that the whole model reads is what the ranks read together."""
    for rank in ranks:
        assert rank.map.linears.keys() == whole.map.linears.keys()
        assert rank.map.tensors.keys() == whole.map.tensors.keys()
    for place in whole.map.tensors:
        found = together(place, decoder, [rank.tensor(place) for rank in ranks])
        assert torch.equal(found, whole.tensor(place)), place
    for place, linear in whole.map.linears.items():
        own = [rank.linear(place) for rank in ranks]
        weights = [rank.read(each.weights) for rank, each in zip(ranks, own, strict=True)]
        assert torch.equal(together(place, decoder, weights), whole.read(linear.weights)), place
        assert [each.size for each in own] == [weight.numel() for weight in weights]
        if not linear.bias:
            assert not any(each.bias for each in own)
        elif place.endswith((".output", "mlp.down")):
            assert [each.bias for each in own] == [rank == 0 for rank in range(len(ranks))], place
            assert torch.equal(ranks[0].read(own[0].biases), whole.read(linear.biases)), place
        else:
            biases = [rank.read(each.biases) for rank, each in zip(ranks, own, strict=True)]
            assert torch.equal(together(place, decoder, biases), whole.read(linear.biases)), place
