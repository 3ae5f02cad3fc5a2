"""Copies adapters from host memory into buffers on the device, beside the steps that run there.

An adapter that takes a slot goes into a buffer that no launched step reads, while steps still compute with the buffer
of the adapter before it. There is one buffer more than slots; the one that is given up is filled again after the steps
that were launched until then. A step waits for a copy only where it uses that adapter, and it is the device that waits:
the host launches copy and step and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from blade_llm.lora.packing import PackedAdapter


class Streams(Protocol):
    """The order of work on a device; :class:`CudaStreams` is it, tests put another in its place."""

    def mark(self) -> Any:
        """All that steps have launched so far."""

    def copy(self, launch: Callable[[], None], after: Any) -> Any:
        """Call ``launch``, whose copies run beside steps, after those of the mark ``after``. Returns a mark of them."""

    def wait(self, mark: Any) -> None:
        """What steps launch from now on runs after ``mark``."""


class CudaStreams:
    """Steps on the current stream, copies on one of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def copy(self, launch: Callable[[], None], after: torch.cuda.Event) -> torch.cuda.Event:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            launch()
        event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)


class NoStreams:
    """Of a device that has done everything when a call returns."""

    def mark(self) -> None:
        return None

    def copy(self, launch: Callable[[], None], after: None) -> None:
        launch()

    def wait(self, mark: None) -> None:
        return None


class SlotCopies:
    """The buffer of each adapter slot."""

    def __init__(self, slots: int, buffers: int, write: Callable[[int, PackedAdapter], None], streams: Streams) -> None:
        """``slots``: 1, 2, …; ``buffers``: 1, 2, …, more than ``slots``. ``write``: launches copies into a buffer."""
        assert buffers > slots, "a slot's next adapter needs a buffer while the last one is in use"
        self._write = write
        self._streams = streams
        self._free = deque((buffer, streams.mark()) for buffer in range(1, buffers + 1))
        """Buffers of no slot, with what was launched while they were one's; the longest free first."""
        self._buffer_of = [0] * (slots + 1)
        self._arriving: dict[int, Any] = {}
        """Buffer → mark of its copies, while they may be under way."""

    def put(self, slot: int, adapter: PackedAdapter) -> None:
        """``slot`` is ``adapter`` for requests that enter from now on; no other uses it."""
        buffer, last_use = self._free.popleft()
        if self._buffer_of[slot]:
            self._free.append((self._buffer_of[slot], self._streams.mark()))
            self._arriving.pop(self._buffer_of[slot], None)
        self._buffer_of[slot] = buffer
        self._arriving[buffer] = self._streams.copy(lambda: self._write(buffer, adapter), last_use)

    def buffer_of(self, slot: int) -> int:
        """Where the adapter of ``slot`` is; slot 0, none, is in buffer 0."""
        return self._buffer_of[slot]

    def await_copies(self, buffers: Iterable[int]) -> None:
        """Let what is launched from now on wait for the copies into ``buffers``."""
        if not self._arriving:
            return
        for buffer in {*buffers} & self._arriving.keys():  # once: later steps are launched after this one
            self._streams.wait(self._arriving.pop(buffer))
