"""What trees of draft tokens brought, to be sent with the next plan: the accepted tokens go into the slots' tables, and
their keys and values to the places that they have in their sequences."""

from __future__ import annotations

from blade_llm.scheduling.plan import KVCopy, TokenUpdate
from blade_llm.scheduling.request import NO_SLOT, Request
from blade_llm.scheduling.step import Step


class AcceptedTokens:
    """Collects the results of trees between a step's result and the next plan.

    The copies go with the very next plan, whatever became of the request: its blocks may be in the prefix cache, and
    nothing is computed before they are made.
    """

    def __init__(self) -> None:
        self._tokens: list[tuple[Request, int, list[int]]] = []
        self._copies: list[KVCopy] = []

    def add(self, request: Request, known: int, path: list[int], block_size: int) -> None:
        """``path``: the accepted draft tokens of ``request``, which had ``known`` tokens before, and has its blocks."""
        self._tokens.append((request, known, request.token_ids[known:]))
        table = request.block_table
        for offset, index in enumerate(path):
            if index != offset:
                source, target = known + index, known + offset
                self._copies.append(
                    KVCopy(
                        table[source // block_size] * block_size + source % block_size,
                        table[target // block_size] * block_size + target % block_size,
                    )
                )

    def move_to(self, step: Step) -> None:
        """Add them to the plan of ``step``; tokens of requests without a slot come with their next one."""
        if not self._tokens:
            return
        step.token_updates[:0] = [
            TokenUpdate(request.slot, start, tokens)
            for request, start, tokens in self._tokens
            if request.slot != NO_SLOT
        ]
        step.kv_copies += self._copies
        self._tokens, self._copies = [], []
