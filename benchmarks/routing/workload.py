"""The prompts of a cell: the same for every policy, made once."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from blade_router.request.parse import parse_fields
from blade_router.request.request import ClientRequest

BLOCK = 256
TURNS = 8
"""Turns of a conversation on average."""
SYSTEM_BLOCKS = 4
"""Blocks of the system prompt that conversations of a kind begin with."""
KINDS = 8
BRANCHES = 0.1
"""Share of turns that are asked again in other words."""


@dataclass(slots=True)
class Job:
    """One request of the trace."""

    request: ClientRequest
    decode: float
    """Its decoding, relative to the mean."""


@dataclass(slots=True)
class Trace:
    """Requests in the order they are sent, and the blocks that are worth keeping."""

    jobs: list[Job]
    working_set: float


def request_of(text: str, *, stream: bool = True) -> ClientRequest:
    message = {"role": "user", "content": text}
    body = msgspec.json.encode({"model": "m", "messages": [message], "stream": stream})
    request = ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"id")
    assert request.prompt.chain or len(text) < BLOCK
    return request


def filler(rng: random.Random, blocks: float) -> str:
    """Text that no other call returns."""
    word = f"{rng.getrandbits(60):015x} "
    size = int(blocks * BLOCK)
    return (word * (size // len(word) + 1))[:size]


def _decodes(rng: random.Random) -> float:
    return 0.5 + rng.random()


def shared(rng: random.Random, count: int, groups: int, skew: float, *, fixed: bool = False) -> Trace:
    """Prompts of which groups share a prefix, with an end of their own.

    Args:
        skew: exponent of the groups' popularity.
        fixed: all prefixes are of 16 blocks and the ends shorter than a block, and responses come in one piece, as in
            the router's benchmark.
    """
    sizes = [16 if fixed else rng.randint(8, 24) for _ in range(groups)]
    prefixes = [filler(rng, size) for size in sizes]
    weights = list(accumulate((rank + 1) ** -skew for rank in range(groups)))
    ranks = rng.choices(range(groups), cum_weights=weights, k=count)
    ready: dict[int, ClientRequest] = {}
    jobs = []
    for rank in ranks:
        if fixed:
            request = ready.get(rank) or ready.setdefault(
                rank, request_of(prefixes[rank] + f"{rank:016x}", stream=False)
            )
            jobs.append(Job(request, 1.0))
        else:
            jobs.append(Job(request_of(prefixes[rank] + filler(rng, rng.uniform(0.2, 2.0))), _decodes(rng)))
    return Trace(jobs, sum(sizes))


def conversations(rng: random.Random, count: int, live: int, skew: float, apart: int) -> Trace:
    """Growing prompts: ``live`` conversations at a time, each begun with one of a few system prompts.

    Args:
        apart: requests that lie between two turns of a conversation: the next one follows the response.
    """
    systems = [filler(rng, SYSTEM_BLOCKS) for _ in range(KINDS)]
    live = max(live, 2 * apart)
    weights = [(rank + 1) ** -skew for rank in range(live)]
    texts = [rng.choice(systems) for _ in range(live)]
    busy: set[int] = set()
    order: deque[int] = deque()
    sums = list(accumulate(weights))
    jobs: list[Job] = []
    total = 0.0
    while len(jobs) < count:
        at = rng.choices(range(live), cum_weights=sums)[0]
        if at in busy:
            at = rng.choice([each for each in range(live) if each not in busy])
        busy.add(at)
        order.append(at)
        if len(order) > apart:
            busy.discard(order.popleft())
        turn = filler(rng, rng.uniform(1.0, 4.0))
        jobs.append(Job(request_of(texts[at] + turn), _decodes(rng)))
        total += len(texts[at]) / BLOCK
        if rng.random() >= BRANCHES:
            texts[at] += turn + filler(rng, rng.uniform(0.3, 1.0))  # and the response
        if rng.random() < 1 / TURNS:
            texts[at] = rng.choice(systems)
    return Trace(jobs, live * total / count)


def unshared(rng: random.Random, count: int, groups: int) -> Trace:
    """Prompts that share nothing."""
    jobs = [Job(request_of(filler(rng, rng.uniform(4.0, 28.0))), _decodes(rng)) for _ in range(count)]
    return Trace(jobs, groups * 16.0)
