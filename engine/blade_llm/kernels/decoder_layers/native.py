"""Decoder layers in C++ (``native.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.decoder_layers.weights import LayerWeights
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.paged_attention.native import Prepared
from blade_llm.kernels.rope_write_kv.native import MAX_HEAD_DIM

MLP_TOKENS = 512
"""As in native.cpp."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Layer(ctypes.Structure):
    """``Layer`` in native.cpp."""

    _fields_ = (
        *((name, _POINTER) for name in ("input_norm", "qkv", "output", "post_attention_norm", "gate_up", "down")),
        *((name, _POINTER) for name in ("q_norm", "k_norm")),
        ("window", _SIZE),
    )


class _Decoder(ctypes.Structure):
    """``Decoder`` in native.cpp."""

    _fields_ = (
        ("layers", _POINTER),
        *((name, _SIZE) for name in ("hidden", "inner", "heads", "kv_heads", "head_dim")),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    """``Step`` in native.cpp."""

    _fields_ = (
        ("tokens", _SIZE),
        *((name, _POINTER) for name in ("cosines", "sines", "slot_mapping", "attention", "caches")),
        *((name, _POINTER) for name in ("x", "residual", "normed", "projected", "gathered")),
    )


class NativeDecoder:
    """Layers whose operators are called from C++."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        packed: Sequence[Sequence[NativeLinear]],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        inner: int,
        eps: float,
    ) -> None:
        """``packed``: each layer's qkv, output, gate_up and down."""
        self._kept = list(layers), packed  # for their addresses
        self._layers = (_Layer * len(layers))(
            *(
                _Layer(
                    layer.input_norm.data_ptr(),
                    qkv.address,
                    output.address,
                    layer.post_attention_norm.data_ptr(),
                    gate_up.address,
                    down.address,
                    None if layer.q_norm is None else layer.q_norm.data_ptr(),
                    None if layer.k_norm is None else layer.k_norm.data_ptr(),
                    layer.window,
                )
                for layer, (qkv, output, gate_up, down) in zip(layers, packed, strict=True)
            )
        )
        hidden, queries = layers[0].input_norm.shape[0], num_heads * head_dim
        self._decoder = _Decoder(
            ctypes.addressof(self._layers), hidden, inner, num_heads, num_kv_heads, head_dim, eps, scale
        )
        self._address = ctypes.addressof(self._decoder)
        self._widths = max(hidden, queries), queries + 2 * num_kv_heads * head_dim, queries
        self._mlp_widths = 0, 2 * inner, inner

    def __call__(
        self,
        embedded: Tensor,
        cos: Tensor,
        sin: Tensor,
        slot_mapping: Tensor,
        attention: Prepared,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        layers: int,
    ) -> tuple[Tensor, Tensor]:
        """The first ``layers`` layers: what the last of them adds, and the residual that it is to be added to.

        ``embedded``: [tokens, hidden] bf16, contiguous, becomes the residual. ``cos``, ``sin`` and ``slot_mapping`` as
        :func:`~blade_llm.kernels.rope_write_kv.rope_write_kv` takes them, ``kv_cache`` in the order of the layers.
        """
        if attention.dtype is not torch.bfloat16:
            raise TypeError(f"the layers are bfloat16, the KV cache is {attention.dtype}: they must be the same")
        tokens = embedded.shape[0]
        x = torch.empty_like(embedded)
        in_mlp = min(tokens, MLP_TOKENS)
        scratch = [
            embedded.new_empty(max(tokens * width, in_mlp * mlp_width))
            for width, mlp_width in zip(self._widths, self._mlp_widths, strict=True)
        ]
        caches = (_POINTER * (2 * len(kv_cache)))(*(cache.data_ptr() for pair in kv_cache for cache in pair))
        step = _Step(
            tokens,
            cos.data_ptr(),
            sin.data_ptr(),
            slot_mapping.data_ptr(),
            attention.address,
            ctypes.addressof(caches),
            x.data_ptr(),
            embedded.data_ptr(),
            *(piece.data_ptr() for piece in scratch),
        )
        _decode()(self._address, ctypes.addressof(step), layers)
        return x, embedded


def fuse(
    layers: Sequence[LayerWeights],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    inner: int,
    eps: float,
) -> NativeDecoder | None:
    """As :func:`blade_llm.kernels.decoder_layers.fuse`; None where an operator would not run in C++."""
    packed = []
    for layer in layers:
        linears = [
            each for each in (layer.qkv, layer.output, layer.gate_up, layer.down) if isinstance(each, NativeLinear)
        ]
        norms = [
            norm
            for norm in (layer.input_norm, layer.post_attention_norm, layer.q_norm, layer.k_norm)
            if norm is not None
        ]
        if len(linears) < 4 or any(norm.dtype != torch.bfloat16 or not norm.is_contiguous() for norm in norms):
            return None
        packed.append(linears)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        return None
    return NativeDecoder(layers, packed, num_heads, num_kv_heads, head_dim, scale, inner, eps)


@cache
def _decode() -> Any:
    return bind("decoder_layers", "ppn")
