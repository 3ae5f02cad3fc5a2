"""Experts of a mixture-of-experts layer: ``sum_k weight_k * down_k(silu(gate_k(x)) * up_k(x))`` as grouped products.

Tokens are sorted by expert, so that each expert's weights are read once for all of its tokens, and the weights of
experts without tokens not at all. Results are weighted and added up in fp32, in the order in which a token has its
experts, and rounded once.

CPU, bf16 and quantised
    Packed linear layers (:mod:`blade_llm.kernels.linear`), also those of weights that a checkpoint has quantised; one
    call in C++ sorts, multiplies and adds up, with the work of all experts together divided among the threads.
GPU
    Triton: a launch each for sorting, gate and up with their activation, down, and the sum. Sizes of launches depend on
    the number of tokens alone and the host waits for nothing, so all of it can be part of a CUDA graph.
otherwise
    One expert after the other, by torch; of quantised weights without a kernel some outputs at a time become floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.experts import torch as _reference
from blade_llm.kernels.experts.packed import LayerPair, PackedExperts, Part
from blade_llm.kernels.linear import pack as pack_linear
from blade_llm.kernels.linear.packed import Packer, Quantization

Expert = tuple[Tensor, Tensor]
"""gate and up stacked ([2 * inner, hidden]) and down ([hidden, inner])."""


def pack(
    experts: Iterable[Expert],
    quant: Quantization = "none",
    *,
    deterministic: bool = False,
    packer: Packer = pack_linear,
    part: Part | None = None,
) -> PackedExperts:
    """Pack the weights of ``experts``, all of one shape. They are read one at a time and packed at once, so an iterator
    that loads them needs memory for one.

    ``deterministic``: a token's result does not depend on the others, as in :func:`blade_llm.kernels.linear.pack`.
    ``packer``: what packs the linear layers of experts on a CPU, as :func:`blade_llm.kernels.linear.pack` does.
    ``part``: which of a layer's ``experts`` are, where they are not all.
    Raises ValueError where shapes or types do not fit.
    """
    remaining = iter(experts)
    first = next(remaining, None)
    if first is None:
        raise ValueError("a mixture-of-experts layer needs at least one expert")
    every = _checked(chain([first], remaining), first)
    backend = backend_of(first[0])
    if backend == "native":
        from blade_llm.kernels.experts import native

        if native.can_pack(first[0]):
            return native.NativeExperts(every, quant, deterministic, packer, part)
    if backend == "triton":
        from blade_llm.kernels.experts import triton

        return triton.TritonExperts(every, quant, deterministic, part)
    return _reference.TorchExperts(every, quant, deterministic, part)


def of_layers(experts: Iterable[LayerPair], part: Part | None = None) -> PackedExperts:
    """The experts whose layers are packed already, on a CPU, as of a checkpoint that has them quantised; each may be in
    another form. ``part``: as of :func:`pack`. Raises ValueError without any."""
    pairs = list(experts)
    if not pairs:
        raise ValueError("a mixture-of-experts layer needs at least one expert")
    from blade_llm.kernels.experts import native

    return native.NativeExperts.of_layers(pairs, part) or _reference.TorchExperts.of_layers(pairs, part)


def _checked(experts: Iterable[Expert], first: Expert) -> Iterator[Expert]:
    both, hidden = first[0].shape
    if both % 2 or first[1].shape != (hidden, both // 2) or first[0].dtype != first[1].dtype:
        shapes = f"{list(first[0].shape)} {first[0].dtype} and {list(first[1].shape)} {first[1].dtype}"
        raise ValueError(f"expected gate_up [2 * inner, hidden] and down [hidden, inner] of one type, got {shapes}")
    for index, (gate_up, down) in enumerate(experts):
        if gate_up.shape != first[0].shape or down.shape != first[1].shape or gate_up.dtype != first[0].dtype:
            raise ValueError(f"expert {index} has another shape or type than expert 0")
        yield gate_up, down
