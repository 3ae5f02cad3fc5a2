"""Copies of adapters beside steps: which buffer an adapter goes to, and what waits for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blade_llm.lora.packing import PackedAdapter
from blade_llm.runner.lora.slot_copies import SlotCopies


class RecordingStreams:
    """A device that does nothing by itself: ``log`` has what was launched, with what it is to run after."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.steps = 0

    def step(self, *buffers: int) -> None:
        self.steps += 1
        self.log.append(("step", *buffers))

    def mark(self) -> str:
        return f"step {self.steps}"

    def copy(self, launch: Callable[[], None], after: str) -> str:
        launch()
        buffer = self.log.pop()
        self.log.append(("copy", *buffer, "after", after))
        return f"copy {buffer[0]}"

    def wait(self, mark: str) -> None:
        self.log.append(("wait", mark))


def copies(slots: int) -> tuple[SlotCopies, RecordingStreams]:
    streams = RecordingStreams()

    def write(buffer: int, adapter: PackedAdapter) -> None:
        streams.log.append((buffer, int(adapter.weights[0])))

    return SlotCopies(slots, slots + 1, write, streams), streams


def adapter(number: int) -> PackedAdapter:
    return PackedAdapter(torch.tensor([number]), torch.empty(0, dtype=torch.int32))


def test_a_step_waits_for_the_adapters_that_it_uses_and_once() -> None:
    some, streams = copies(3)
    some.put(1, adapter(10))
    some.put(2, adapter(20))
    assert [some.buffer_of(slot) for slot in (0, 1, 2, 3)] == [0, 1, 2, 0]
    some.await_copies([0, 0])
    some.await_copies([1, 0, 1])
    some.await_copies([1])
    some.await_copies([2, 1])
    assert streams.log == [
        ("copy", 1, 10, "after", "step 0"),
        ("copy", 2, 20, "after", "step 0"),
        ("wait", "copy 1"),
        ("wait", "copy 2"),
    ]


def test_an_adapter_does_not_overwrite_what_launched_steps_still_read() -> None:
    """The one that replaces it goes to another buffer at once; its own is filled again after these steps."""
    some, streams = copies(1)
    some.put(1, adapter(10))
    some.await_copies([some.buffer_of(1)])
    streams.step(1)
    streams.step(1)
    some.put(1, adapter(11))  # step 2 is still running, and this copy does not wait for it
    assert some.buffer_of(1) == 2
    some.await_copies([2])
    streams.step(2)
    some.put(1, adapter(12))
    assert some.buffer_of(1) == 1
    assert [entry for entry in streams.log if entry[0] == "copy"] == [
        ("copy", 1, 10, "after", "step 0"),
        ("copy", 2, 11, "after", "step 0"),
        ("copy", 1, 12, "after", "step 2"),
    ]


def test_many_adapters_in_one_step_wait_for_earlier_steps_alone() -> None:
    some, streams = copies(2)
    for slot in (1, 2):
        some.put(slot, adapter(slot))
    streams.step(1, 2)
    for slot in (1, 2):
        some.put(slot, adapter(10 + slot))
    assert [some.buffer_of(slot) for slot in (1, 2)] == [3, 1]
    assert streams.log[-2:] == [("copy", 3, 11, "after", "step 0"), ("copy", 1, 12, "after", "step 1")]


def test_a_copy_that_no_step_waited_for_is_forgotten_with_its_slot() -> None:
    some, streams = copies(1)
    some.put(1, adapter(10))
    some.put(1, adapter(11))
    some.await_copies([1, 2])
    assert [entry for entry in streams.log if entry[0] == "wait"] == [("wait", "copy 2")]
