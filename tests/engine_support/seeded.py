"""A sampler with a stand-in for a model, whose logits depend on a slot's last tokens alone and are the same bits in any
batch. As a program, another replica: it goes on with the sequences it reads from standard input."""

from __future__ import annotations

import json
import sys
from typing import Final

import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledSlots, Sampler
from blade_llm.sampling.table import SamplingTable

PROMPT: Final = [5, 17, 5]
LENGTH: Final = 28
"""Prompt and output."""
VOCABULARY: Final = 2500
MASKED: Final = (3, 4)
KINDS: Final = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.6),
    SamplingParams(seed=2, temperature=1.5, top_k=40),
    SamplingParams(seed=3, top_p=0.7),
    SamplingParams(seed=4, min_p=0.02),
    SamplingParams(seed=5, temperature=1.2, top_k=200, top_p=0.9, min_p=0.001),
    SamplingParams(seed=6, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
    SamplingParams(seed=2**63 + 1, temperature=0.9, top_p=0.95, frequency_penalty=1.0, min_tokens=10, max_tokens=60),
]


class Replica:
    """Requests in slots, and their tokens so far."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._by_token = [(torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 2).to(DEVICE) for _ in range(2)]
        self._table = SamplingTable(16, DEVICE)
        self._token_ids = torch.full((16, LENGTH + 1), 7, dtype=torch.int32, device=DEVICE)
        self._sampler = Sampler(self._table, self._token_ids)
        self.sequences: dict[int, list[int]] = {}

    def enter(self, kind: int, slot: int, tokens: list[int] = PROMPT) -> None:
        """A request enters, or comes back with what it has already sampled."""
        self._table.write(slot, KINDS[kind], num_prompt_tokens=len(PROMPT), masked_until_min_tokens=MASKED)
        self._token_ids[slot] = 9
        self._token_ids[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)
        self.sequences[slot] = list(tokens)

    def leave(self, slot: int) -> None:
        self._table.free(slot)
        del self.sequences[slot]

    def run(self, slots: list[int], steps: int) -> None:
        """Sample for these slots together."""
        for _ in range(steps):
            positions = [len(self.sequences[slot]) for slot in slots]
            last = torch.tensor([self.sequences[slot][-2:] for slot in slots], device=DEVICE)
            logits = self._by_token[0][last[:, 0]] + self._by_token[1][last[:, 1]]
            index, lengths = torch.tensor(slots, device=DEVICE), torch.tensor(positions, device=DEVICE)
            sampled = self._sampler.sample(logits, SampledSlots(slots, positions, index, lengths))
            self._token_ids[index, lengths] = sampled.tokens.int()
            for slot, token in zip(slots, sampled.tokens.tolist(), strict=True):
                self.sequences[slot].append(token)


def main() -> None:
    torch.set_num_threads(2)
    replica, slots = Replica(), [15 - kind for kind in range(len(KINDS))]
    for kind, tokens in enumerate(json.load(sys.stdin)):
        replica.enter(kind, slots[kind], tokens)
    for slot in slots:
        replica.run([slot], LENGTH - len(replica.sequences[slot]))
    print(json.dumps([replica.sequences[slot] for slot in slots]))


if __name__ == "__main__":
    main()
