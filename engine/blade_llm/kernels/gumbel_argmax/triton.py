"""Gumbel-max sampling in Triton: every program finds the best token of a piece of one row's vocabulary, and a second,
small kernel the best piece. The maximum is exact, so the sample does not depend on how the vocabulary was divided.

The random bits are those of the torch implementation, here in uint32, which wraps by itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_PIECE = 2048
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x2C1B3C6D
    x = (x ^ (x >> 14)) * 0x297A2D39
    return x ^ (x >> 16)


@triton.jit
def _token_bits(tokens, first, second):
    x = tokens ^ first
    x = (x ^ (x >> 16)) * 0x7FEB352D + second
    x = (x ^ (x >> 15)) * 0x2C1B3C6D
    x = (x ^ (x >> 14)) * 0x297A2D39
    return x ^ (x >> 16)


@triton.jit
def _gumbel(bits):
    """Standard Gumbel noise out of 32 random bits."""
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    if _INTERPRETED:
        # log(1 - u) without its loss of digits at small u (Kahan), where libdevice is not at hand.
        rest = 1.0 - uniform
        less = tl.where(rest == 1.0, -uniform, tl.log(rest) * (-uniform / tl.where(rest == 1.0, 1.0, rest - 1.0)))
        return -tl.log(-less)
    return -libdevice.log(-libdevice.log1p(-uniform))


@triton.jit(do_not_specialize_on_alignment=["thresholds_ptr", "keys_ptr", "positions_ptr"])
def _best_of_piece_kernel(
    logits_ptr,
    thresholds_ptr,
    keys_ptr,
    positions_ptr,
    best_ptr,
    token_ptr,
    VOCABULARY: tl.constexpr,
    PIECES: tl.constexpr,
    PIECE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    first_key = tl.load(keys_ptr + row * 2).to(tl.uint32)
    second_key = tl.load(keys_ptr + row * 2 + 1).to(tl.uint32)
    position = tl.load(positions_ptr + row).to(tl.uint32)
    first = _mix(first_key ^ _mix(position + 0x2545F491))
    second = _mix(second_key ^ first)

    tokens = piece * PIECE + tl.arange(0, PIECE)
    inside = tokens < VOCABULARY
    logits = tl.load(logits_ptr + row * VOCABULARY + tokens, inside, float("-inf"))
    noisy = logits + _gumbel(_token_bits(tokens.to(tl.uint32), first, second))
    out = logits < tl.load(thresholds_ptr + row)
    noisy = tl.where(out, float("-inf"), noisy)
    noisy = tl.where(noisy != noisy, float("inf"), noisy)  # NaN wins, as in torch
    best, place = tl.max(noisy, 0, return_indices=True)
    tl.store(best_ptr + row * PIECES + piece, best)
    tl.store(token_ptr + row * PIECES + piece, piece * PIECE + place)


@triton.jit
def _best_piece_kernel(best_ptr, token_ptr, out_ptr, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    pieces = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * PIECES + pieces, pieces < PIECES, float("-inf"))
    token = tl.load(token_ptr + row * PIECES + tl.argmax(best, 0))
    tl.store(out_ptr + row, token.to(tl.int64))


def gumbel_argmax(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    rows, vocabulary = logits.shape
    pieces = triton.cdiv(vocabulary, _PIECE)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    best = torch.empty(rows, pieces, dtype=torch.float32, device=logits.device)
    best_tokens = torch.empty(rows, pieces, dtype=torch.int32, device=logits.device)
    _best_of_piece_kernel[(rows, pieces)](
        logits.contiguous(),
        thresholds,
        keys.contiguous(),
        positions,
        best,
        best_tokens,
        VOCABULARY=vocabulary,
        PIECES=pieces,
        PIECE=_PIECE,
        num_warps=4,
        enable_fp_fusion=False,  # rounds like the reference
    )
    block = triton.next_power_of_2(pieces)
    _best_piece_kernel[(rows,)](best, best_tokens, tokens, PIECES=pieces, BLOCK=block, num_warps=1)
    return tokens
