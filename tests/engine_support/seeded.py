"""A sampler with a stand-in for a model, whose logits depend on a row's last tokens alone and are the same bits in any
batch. As a program, another replica: it goes on with the sequences it reads from standard input."""

from __future__ import annotations

import json
import sys
from typing import Final

import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledRows, Sampler
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
    """Requests in rows, and their tokens so far."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._by_token = [(torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 2).to(DEVICE) for _ in range(2)]
        self._table = SamplingTable(16, DEVICE)
        self._token_ids = torch.full((16, LENGTH + 1), 7, dtype=torch.int32, device=DEVICE)
        self._sampler = Sampler(self._table, self._token_ids)
        self.sequences: dict[int, list[int]] = {}

    def enter(self, kind: int, row: int, tokens: list[int] = PROMPT) -> None:
        """A request enters, or comes back with what it has already drawn."""
        self._table.enter(row, KINDS[kind], num_prompt_tokens=len(PROMPT), masked_until_min_tokens=MASKED)
        self._token_ids[row] = 9
        self._token_ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)
        self.sequences[row] = list(tokens)

    def leave(self, row: int) -> None:
        self._table.leave(row)
        del self.sequences[row]

    def run(self, rows: list[int], steps: int) -> None:
        """Draw for these rows together."""
        for _ in range(steps):
            positions = [len(self.sequences[row]) for row in rows]
            last = torch.tensor([self.sequences[row][-2:] for row in rows], device=DEVICE)
            logits = self._by_token[0][last[:, 0]] + self._by_token[1][last[:, 1]]
            index, lengths = torch.tensor(rows, device=DEVICE), torch.tensor(positions, device=DEVICE)
            drawn = self._sampler.draw(logits, SampledRows(rows, positions, index, lengths))
            self._token_ids[index, lengths] = drawn.tokens.int()
            for row, token in zip(rows, drawn.tokens.tolist(), strict=True):
                self.sequences[row].append(token)


def main() -> None:
    torch.set_num_threads(2)
    replica, rows = Replica(), [15 - kind for kind in range(len(KINDS))]
    for kind, tokens in enumerate(json.load(sys.stdin)):
        replica.enter(kind, rows[kind], tokens)
    for row in rows:
        replica.run([row], LENGTH - len(replica.sequences[row]))
    print(json.dumps([replica.sequences[row] for row in rows]))


if __name__ == "__main__":
    main()
