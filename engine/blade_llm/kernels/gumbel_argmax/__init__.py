"""Drawing a token as ``argmax(logits + Gumbel noise)``, the Gumbel-max trick (Gumbel 1954; Maddison et al., arXiv
1411.0030), with noise that is a pure function of (row key, position, token id).

The noise never depends on the batch, the row, the device or what was sampled before, so a sample can be repeated
anywhere.
"""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.gumbel_argmax import torch as _reference

noise_key = _reference.noise_key
gumbel_noise = _reference.gumbel_noise


def gumbel_argmax(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Sample one token a row among those whose logit is at least the row's threshold; the lowest id among equals.

    ``logits``: [rows, vocabulary] fp32, contiguous, already divided by the temperature. ``thresholds``: [rows] fp32,
    ``-inf`` for none. ``keys``: [rows, 2] int64 from :func:`noise_key`. ``positions``: [rows] int64, of the token to
    sample. Returns [rows] int64; for a row with NaN, the place of the first.
    """
    backend = backend_of(logits)
    if backend == "native":
        from blade_llm.kernels.gumbel_argmax import native

        return native.gumbel_argmax(logits, thresholds, keys, positions)
    if backend == "triton":
        from blade_llm.kernels.gumbel_argmax import triton

        return triton.gumbel_argmax(logits, thresholds, keys, positions)
    return _reference.gumbel_argmax(logits, thresholds, keys, positions)
