"""Decoder layers in C++ (``native.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.activate.kinds import FORMULAS
from blade_llm.kernels.collectives.native import raise_failure
from blade_llm.kernels.decoder_layers.weights import NORMS, DecoderShape, LayerWeights
from blade_llm.kernels.experts.mixture import NativeMixture
from blade_llm.kernels.experts.mixture import serves as serves_mixture
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.kernels.lora import AdapterBatch
from blade_llm.kernels.lora.native import NativeTable, batch_address, serves_batch
from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.paged_attention.native import Form, Prepared, form_of
from blade_llm.kernels.rope_write_kv.native import MAX_HEAD_DIM

MLP_TOKENS = 512
"""As in native.cpp."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Layer(ctypes.Structure):
    """``Layer`` in native.cpp."""

    _fields_ = tuple(
        (name, _POINTER)
        for name in (
            *("input_norm", "input_norm_bias", "qkv", "output", "post_attention_norm", "post_attention_norm_bias"),
            *("gate_up", "down", "mixture", "q_norm", "k_norm", "attention"),
            *("qkv_adapters", "output_adapters", "gate_up_adapters", "down_adapters"),
        )
    )


class _Decoder(ctypes.Structure):
    """``Decoder`` in native.cpp."""

    _fields_ = (
        ("layers", _POINTER),
        *((name, _SIZE) for name in ("hidden", "inner", "heads", "kv_heads", "head_dim", "formula", "gated", "norm")),
        ("eps", ctypes.c_float),
        ("group", _POINTER),
    )


class _Step(ctypes.Structure):
    """``Step`` in native.cpp."""

    _fields_ = (
        ("tokens", _SIZE),
        *((name, _POINTER) for name in ("cosines", "sines", "slot_mapping", "attention", "caches")),
        *((name, _POINTER) for name in ("x", "residual", "normed", "projected", "gathered", "mixture")),
        *((name, _POINTER) for name in ("adapters", "mlp_adapters")),
    )


class NativeDecoder:
    """Layers whose operators are called from C++."""

    def __init__(self, layers: Sequence[LayerWeights], shape: DecoderShape, group: int | None = None) -> None:
        """``layers``: such as are served; ``shape``: this rank's; ``group``: address of that of its ranks."""
        heads, kv_heads, head_dim, inner = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.inner
        forms = [
            form_of(shape.scale, layer.window, layer.variant, heads, head_dim, (0, kv_heads * head_dim, head_dim, 1))
            for layer in layers
        ]
        mixtures = [None if layer.mixture is None else NativeMixture(layer.mixture) for layer in layers]
        self._kept = list(layers), forms  # for their addresses
        tables = [table for layer in layers for table in layer.wrapped]
        self._adapters: NativeTable | None = None
        """One of the tables, which all have adapters of one type in a slot; None: not all are there."""
        if all(table is not None and table.native is not None for table in tables):
            self._adapters = tables[0].native if tables[0] is not None else None
        self._mixtures = [each for each in mixtures if each is not None]
        self.num_layers, self.num_heads = len(layers), heads
        self._layers = (_Layer * len(layers))(*map(_layer, layers, mixtures, forms))
        hidden, queries = layers[0].input_norm.shape[0], heads * head_dim
        formula, norm = FORMULAS[shape.activation], NORMS[shape.norm]
        self._decoder = _Decoder(
            ctypes.addressof(self._layers),
            *(hidden, inner, heads, kv_heads, head_dim, formula, shape.gated, norm),
            shape.eps,
            group,
        )
        self.address = ctypes.addressof(self._decoder)
        self._widths = max(hidden, queries), queries + 2 * kv_heads * head_dim, queries
        self._mlp_widths = 0, (2 if shape.gated else 1) * inner, inner

    def serves_adapters(self, batch: AdapterBatch) -> bool:
        """Whether a step with these adapters can be computed in the call."""
        return self._adapters is not None and serves_batch(self._adapters, batch)

    def __call__(
        self,
        embedded: Tensor,
        cos: Tensor,
        sin: Tensor,
        slot_mapping: Tensor,
        attention: Prepared,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        layers: int,
        adapters: AdapterBatch | None = None,
        first: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Layers ``first`` to before ``layers``: what the last of them adds, and the residual to add it to.

        ``embedded``: [tokens, hidden] bf16, contiguous, what layer ``first`` gets, becomes the residual. ``cos``,
        ``sin`` and ``slot_mapping`` as
        :func:`~blade_llm.kernels.rope_write_kv.rope_write_kv` takes them, ``kv_cache`` in the order of the layers.
        ``adapters``: such as :meth:`serves_adapters`.

        Raises :class:`~blade_llm.kernels.collectives.RankLostError` where another rank is lost.
        """
        if attention.dtype is not torch.bfloat16:
            raise TypeError(f"the layers are bfloat16, the KV cache is {attention.dtype}: they must be the same")
        tokens = embedded.shape[0]
        x = torch.empty_like(embedded)
        scratch = self.scratch(tokens)
        caches = cache_pointers(kv_cache[first:])
        own = [] if adapters is None else adapters.parts(tokens, MLP_TOKENS)
        parts = (_POINTER * len(own))(*(None if part is None else batch_address(part) for part in own))
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
            None if adapters is None else batch_address(adapters),
            ctypes.addressof(parts),
        )
        decoder = self._decoder if not first else self._beginning(first)
        status = _decode()(ctypes.addressof(decoder), ctypes.addressof(step), layers - first)
        if status:
            raise_failure(decoder.group, status)
        return x, embedded

    def _beginning(self, first: int) -> _Decoder:
        """The same without the layers before ``first``."""
        decoder = _Decoder.from_buffer_copy(self._decoder)
        decoder.layers = ctypes.addressof(self._layers) + first * ctypes.sizeof(_Layer)
        return decoder

    def scratch(self, tokens: int) -> list[Tensor]:
        """What layers need between their operators for so many tokens: ``normed`` to ``mixture`` of a step."""
        in_mlp = min(tokens, MLP_TOKENS)
        between = max((each.scratch_bytes(tokens) for each in self._mixtures), default=0)
        return [
            *(
                torch.empty(max(tokens * width, in_mlp * mlp_width), dtype=torch.bfloat16)
                for width, mlp_width in zip(self._widths, self._mlp_widths, strict=True)
            ),
            torch.empty(between, dtype=torch.uint8),
        ]


def cache_pointers(kv_cache: Sequence[tuple[Tensor, Tensor]]) -> ctypes.Array[Any]:
    """Addresses of keys and values, layer by layer."""
    return (_POINTER * (2 * len(kv_cache)))(*(cache.data_ptr() for pair in kv_cache for cache in pair))


def serves(layer: LayerWeights, head_dim: int) -> bool:
    """See :func:`blade_llm.kernels.decoder_layers.serves`."""
    linears = [layer.qkv, layer.output, *(() if layer.mixture else (layer.gate_up, layer.down))]
    if not all(isinstance(each, NativeLinear) for each in linears):
        return False
    if layer.mixture is not None and not serves_mixture(layer.mixture):
        return False
    if any(norm.dtype != torch.bfloat16 or not norm.is_contiguous() for norm in layer.norms):
        return False
    by_head = all(norm is None or len(norm) == head_dim for norm in (layer.q_norm, layer.k_norm))
    return by_head and head_dim % 2 == 0 and head_dim <= MAX_HEAD_DIM


def _layer(layer: LayerWeights, mixture: NativeMixture | None, form: Form) -> _Layer:
    def address(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    def packed(linear: object) -> int:
        assert isinstance(linear, NativeLinear)
        return linear.address

    return _Layer(
        address(layer.input_norm),
        address(layer.input_norm_bias),
        packed(layer.qkv),
        packed(layer.output),
        address(layer.post_attention_norm),
        address(layer.post_attention_norm_bias),
        packed(layer.gate_up) if mixture is None else None,
        packed(layer.down) if mixture is None else None,
        None if mixture is None else mixture.address,
        address(layer.q_norm),
        address(layer.k_norm),
        form.address,
        *(None if table is None else table.native.address for table in layer.adapters),
    )


@cache
def _decode() -> Any:
    return bind("decoder_layers", "ppn", "i")
