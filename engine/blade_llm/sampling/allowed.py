"""The allowed tokens of slots as bit masks on the device, sent once a request, when it first samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blade_llm.sampling.masks import mask_words
from blade_llm.sampling.restrictions import allowed_mask
from blade_llm.sampling.transfer import to_device, words_to_device


class AllowedMasks:
    """One row of bits a slot; no memory before the first request that needs one."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._max_num_seqs = max_num_seqs
        self._device = device
        self._masks: Tensor | None = None
        self._unsent: dict[int, tuple[int, ...]] = {}

    def record(self, slot: int, token_ids: tuple[int, ...] | None) -> None:
        """Remember on the host what the request in ``slot`` may sample; None: anything."""
        if token_ids is None:
            self._unsent.pop(slot, None)
        else:
            self._unsent[slot] = token_ids

    def send(self, slots: Sequence[int], vocab_size: int) -> Tensor:
        """The masks of all slots, [slots, mask_words(vocab_size)] int32; those of ``slots``, which have some, are
        there."""
        if self._masks is None:
            self._masks = torch.zeros(
                self._max_num_seqs, mask_words(vocab_size), dtype=torch.int32, device=self._device
            )
        unsent = [slot for slot in dict.fromkeys(slots) if slot in self._unsent]
        if unsent:
            masks = np.stack([allowed_mask(self._unsent.pop(slot), (), vocab_size) for slot in unsent])
            self._masks.index_copy_(0, to_device(unsent, self._device), words_to_device(masks, self._device))
        return self._masks
