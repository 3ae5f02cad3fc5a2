"""Estimates of the memory that a model's weights and its steps take, from its configuration alone. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import EXPANDED_CONTEXT
from blade_llm.spec.quantization.weights import dequantized_bytes
from blade_llm.spec.vocabulary import vocabulary_rows, vocabulary_width

BYTES_PER_WEIGHT: Final[Mapping[str, float]] = {"int8": 1.0, "int4": 0.5625, "w8a8": 1.0}
"""Bytes per weight of quantised matrices; int4 with a 16-bit scale for each 32 weights."""
SCORED_AT_ONCE: Final = 64
"""Positions of prompts whose logits exist at the same time, where log-probabilities of a prompt are wanted."""


def weight_bytes(config: ModelConfig, dtype: DTypeName, quant: str = "none", *, on_gpu: bool = False) -> int:
    """Estimate of the weights' bytes on CPU, where the output matrix is packed beside the table it is tied to; of a
    rank's configuration, the rank's own.

    ``quant``: ``none``, ``int8``, ``int4`` or ``w8a8``, of all matrices but the embedding table. Those that
    the checkpoint has quantised are counted as they are kept; ``on_gpu`` experts become floats.
    """
    tensors = config.tensors
    matrices = tensors.linear_size
    packed = 0
    if config.decoder.head and config.decoder.tied and config.ends:
        if tensors.table is None:
            matrices += _vocabulary_rows(config) * config.hidden_size
        else:
            packed = tensors.table.nbytes
    floats = tensors.other_size * DTYPE_BYTES[dtype] + int(matrices * BYTES_PER_WEIGHT.get(quant, DTYPE_BYTES[dtype]))
    if on_gpu:
        for part in tensors.quantized_experts():
            assert part.form is not None
            elements = part.wanted * part.wanted_inputs
            floats += elements * DTYPE_BYTES[dtype] - part.form.packed_bytes(
                part.wanted, part.wanted_inputs, part.inputs
            )
    return floats + tensors.quantized_bytes + packed


def rotation_bytes(config: ModelConfig, positions: int) -> int:
    """Bytes of the tables of angles (cosines and sines in fp32) that are kept for so many positions."""
    if not isinstance(config.decoder, DecoderSpec):
        return 0
    attentions = [layer.attention for layer in config.decoder.layers]
    widths = [width for _, width in {(each.rope, each.rotary_width) for each in attentions}]
    return sum(4 * positions * width for width in widths)


def activation_bytes(config: ModelConfig, dtype: DTypeName, *, max_batch_tokens: int, max_num_seqs: int) -> int:
    """Upper estimate of the working memory of one step, in bytes.

    That of its layers, that of a context that latent attention expands, and per sequence, or per position of a prompt
    that is scored: a row of logits, its noise and its probabilities in fp32, and of a rank's configuration its own
    part of that row.
    """
    rows = max(max_num_seqs, min(SCORED_AT_ONCE, max_batch_tokens))
    expanded = (
        min(EXPANDED_CONTEXT, config.max_position_embeddings) * config.decoder.expanded_width * DTYPE_BYTES[dtype]
    )
    own_logits = 0 if config.shard is None else vocabulary_width(config.vocab_size, config.shard.size)
    logits = rows * (3 * config.vocab_size + own_logits) * 4 if config.ends else 0
    return layer_activation_bytes(config, dtype, max_batch_tokens) + expanded + logits


def layer_activation_bytes(config: ModelConfig, dtype: DTypeName, tokens: int) -> int:
    """Upper estimate of the working memory of the layers in a step of so many tokens, in bytes.

    Per token: residual, normed input, attention output, q, k, v, and the arrays of the MLP, of the widest layer (layers
    reuse them). Besides, what multiplying by a weight takes that the checkpoint has quantised, as if it were made
    floats: whether a kernel takes it as it is depends on the machine and on the stored numbers.
    """
    floats = max((dequantized_bytes(tokens, *size) for size in config.tensors.quantized_sizes()), default=0)
    return tokens * (4 * config.hidden_size + config.decoder.widest) * DTYPE_BYTES[dtype] + floats


def _vocabulary_rows(config: ModelConfig) -> int:
    """Rows of the embedding table; of a rank's part, the rank's."""
    if config.shard is None:
        return config.vocab_size
    return len(vocabulary_rows(config.vocab_size, config.shard.rank, config.shard.size))
