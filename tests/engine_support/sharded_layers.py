"""Two small decoder layers in bf16, an MLP in the one and experts in the other, divided by hand among ranks: heads and
inner widths; biases of sums belong to the first rank."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.decoder_layers import fuse
from blade_llm.kernels.decoder_layers.native import NativeDecoder
from blade_llm.kernels.decoder_layers.weights import LayerWeights
from blade_llm.kernels.experts.native import NativeExperts
from blade_llm.kernels.experts.packed import MixtureWeights
from blade_llm.kernels.experts.packed import Part as ExpertPart
from blade_llm.kernels.linear import pack
from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.moe import RoutingSpec
from blade_llm.spec.shard import Shard

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, EXPERTS = 256, 8, 4, 32, 512, 4
BLOCK = 16


class Part:
    """Tensors of rank ``rank``, cut out of those of the whole layer; all ranks draw the same ones."""

    def __init__(self, rank: int, size: int, *, whole_experts: bool = False) -> None:
        self.rank, self.size = rank, size
        self._experts = Shard(rank, size).share_of(EXPERTS) if whole_experts else None
        self._generator = torch.Generator().manual_seed(5)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).mul(shape[-1] ** -0.5).bfloat16()

    def rows(self, x: Tensor) -> Tensor:
        count = len(x) // self.size
        return x[self.rank * count : (self.rank + 1) * count]

    def stacked(self, count: int, outputs: int) -> Tensor:
        """``count`` weights side by side, such as gate and up."""
        return torch.cat([self.rows(self.draw(outputs, HIDDEN)) for _ in range(count)])

    def columns(self, outputs: int, inputs: int) -> Tensor:
        return self.draw(outputs, inputs).chunk(self.size, dim=1)[self.rank].contiguous()

    def first_only(self, bias: Tensor) -> Tensor:
        return bias if self.rank == 0 else torch.zeros_like(bias)

    def layer(self, mixture: bool) -> LayerWeights:
        sizes = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
        qkv = torch.cat([self.rows(self.draw(each, HIDDEN)) for each in sizes])
        qkv_bias = torch.cat([self.rows(self.draw(each)) for each in sizes])
        output, output_bias = self.columns(HIDDEN, HEADS * HEAD_DIM), self.first_only(self.draw(HIDDEN))
        norms = [1 + self.draw(HIDDEN) for _ in range(2)]
        experts = None
        gate_up = down = None
        if mixture:
            if self._experts is None:
                part = None
                pairs = [(self.stacked(2, INNER), self.columns(HIDDEN, INNER)) for _ in range(EXPERTS)]
            else:
                part = ExpertPart(self._experts.start, EXPERTS)
                drawn = [
                    (self.draw(INNER, HIDDEN), self.draw(INNER, HIDDEN), self.draw(HIDDEN, INNER))
                    for _ in range(EXPERTS)
                ]
                pairs = [
                    (torch.cat([gate, up]), down) for gate, up, down in drawn[self._experts.start : self._experts.stop]
                ]
            experts = MixtureWeights(
                pack(self.draw(EXPERTS, HIDDEN)),
                NativeExperts(pairs, "none", False, pack, part),
                RoutingSpec(EXPERTS, EXPERTS, renormalize=True),  # a choice of some would change with the last bit
            )
        else:
            gate_up = pack(self.stacked(2, INNER))
            down = pack(self.columns(HIDDEN, INNER), self.first_only(self.draw(HIDDEN)))
        attention = pack(qkv, qkv_bias), pack(output, output_bias)
        return LayerWeights(norms[0], *attention, norms[1], gate_up, down, mixture=experts)


def decoder_of(group: RankGroup | None, *, whole_experts: bool = False) -> NativeDecoder:
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    part = Part(rank, size, whole_experts=whole_experts)
    fused = fuse(
        [part.layer(mixture=False), part.layer(mixture=True)],
        num_heads=HEADS // size,
        num_kv_heads=KV_HEADS // size,
        head_dim=HEAD_DIM,
        inner=INNER // size,
        eps=1e-6,
        group=None if group is None else group.native,
    )
    assert fused is not None
    return fused


def states(group: RankGroup | None, steps: tuple[int, ...], *, whole_experts: bool = False) -> list[Tensor]:
    """Hidden states after steps of so many tokens of one sequence each. ``whole_experts``: ranks have some experts
    whole, not some of each."""
    size = 1 if group is None else group.size
    decoder, found, done = decoder_of(group, whole_experts=whole_experts), [], 0
    blocks = -(-sum(steps) // BLOCK)
    shape = blocks, BLOCK, KV_HEADS // size, HEAD_DIM
    cache = [(torch.zeros(shape).bfloat16(), torch.zeros(shape).bfloat16()) for _ in range(2)]
    table = torch.arange(blocks, dtype=torch.int32)[None]
    generator = torch.Generator().manual_seed(9)
    for tokens in steps:
        embedded = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
        places = torch.arange(done, done + tokens)
        done += tokens
        angles = places[:, None] * 0.1 ** torch.arange(HEAD_DIM // 2)
        batch = RaggedBatch.of(torch.tensor([0]), [tokens], [done])
        attention = prepare(batch, table, cache[0][0], HEADS // size)
        x, residual = decoder(embedded, angles.cos(), angles.sin(), places, attention, cache, 2)
        found.append(x.float() + residual.float())
    return found


def states_of(group: RankGroup, steps: tuple[int, ...], whole_experts: bool) -> list[bytes]:
    """As :func:`states`, to be sent."""
    return [each.numpy().tobytes() for each in states(group, steps, whole_experts=whole_experts)]


def error_when_others_left(group: RankGroup) -> str:
    """Of a step that rank 0 computes alone, and of the next."""
    group.least(0)
    if group.rank:
        return "left"
    messages = []
    for _ in range(2):
        try:
            states(group, (5,))
        except RuntimeError as error:
            messages.append(f"{type(error).__name__}: {error}")
    return " / ".join(messages)
