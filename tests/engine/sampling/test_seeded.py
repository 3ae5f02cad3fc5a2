"""A seeded request gets the same tokens in fp32 alone, in a batch, after a preemption and on another replica: whole
sequences, in which every token depends on all before it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import engine_support.triton_interpreter as triton_interpreter
import pytest
from engine_support.seeded import KINDS, LENGTH, PROMPT, Replica
from engine_support.triton_interpreter import use_triton

ALL = list(range(len(KINDS)))


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """The tokens of each kind of request on a replica of its own."""
    sequences = []
    for kind in ALL:
        replica = Replica()
        replica.enter(kind, slot=0)
        replica.run([0], LENGTH - len(PROMPT))
        sequences.append(replica.sequences[0])
    return sequences


def test_seeds_make_a_difference(alone: list[list[int]]) -> None:
    assert len({tuple(tokens) for tokens in alone}) == len(KINDS)
    assert all(len(set(tokens)) > LENGTH // 4 for tokens in alone)


@pytest.mark.parametrize(("kernels", "kinds"), [("", ALL), ("triton", [1, 5, 7])])
def test_in_a_batch(alone: list[list[int]], kernels: str, kinds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In any slots, with neighbours that come and go."""
    if kernels:
        use_triton(monkeypatch)
    generator = random.Random(3)
    slots = generator.sample(range(16), len(kinds))
    replica = Replica()
    for kind, slot in zip(kinds, slots, strict=True):
        replica.enter(kind, slot)
    for _ in range(1000):
        living = [slot for slot in slots if len(replica.sequences[slot]) < LENGTH]
        if not living:
            break
        replica.run(generator.sample(living, generator.randint(1, len(living))), 1)
    assert [replica.sequences[slot] for slot in slots] == [alone[kind] for kind in kinds]


def test_after_preemptions(alone: list[list[int]]) -> None:
    """Its slot is taken by another request, and it goes on in a new one."""
    generator = random.Random(4)
    for kind in ALL:
        replica = Replica()
        slot = 3
        replica.enter(kind, slot)
        while len(replica.sequences[slot]) < LENGTH:
            replica.run([slot], min(generator.randint(1, 9), LENGTH - len(replica.sequences[slot])))
            so_far = replica.sequences[slot]
            replica.leave(slot)
            replica.enter(generator.choice(ALL), slot)
            replica.run([slot], 2)
            replica.leave(slot)
            slot = generator.randrange(16)
            replica.enter(kind, slot, so_far)
        assert replica.sequences[slot] == alone[kind]


@pytest.mark.skipif(triton_interpreter.COMPILED, reason="the other replica is one on CPU")
def test_on_another_replica(alone: list[list[int]]) -> None:
    """Another process, with other operators and threads, takes over in the middle."""
    half = [tokens[: LENGTH // 2 + kind] for kind, tokens in enumerate(alone)]
    environment = {**os.environ, "BLADE_LLM_KERNELS": "torch", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "engine_support.seeded"],
        input=json.dumps(half),
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert json.loads(done.stdout) == alone
