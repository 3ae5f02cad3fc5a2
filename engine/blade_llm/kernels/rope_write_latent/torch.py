"""Rotation and write of latent vectors in plain torch; queries and the shared key are rotated together."""

import torch
from torch import Tensor

from blade_llm.kernels.rms_norm.torch import rms_norm


def rope_write_latent(
    queries: Tensor,
    compressed: Tensor,
    norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    cache: Tensor,
    out: Tensor,
    neighbours: bool = True,
) -> None:
    latent_dim, rope_dim = len(norm), 2 * cos.shape[1]
    latent, key = compressed[:, :latent_dim], compressed[:, latent_dim:]
    turned = torch.cat((queries[..., -rope_dim:], key.unsqueeze(1)), dim=1)
    first, second = (turned[..., 0::2], turned[..., 1::2]) if neighbours else turned.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(out.dtype)
    out[..., latent_dim:] = rotated[:, :-1]
    rows = torch.cat((rms_norm(latent, norm, eps), rotated[:, -1]), dim=-1)
    cache.view(-1, latent_dim + rope_dim).index_copy_(0, slot_mapping, rows)
