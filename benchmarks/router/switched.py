"""A router of which a part is switched off by SIGUSR1 and on by SIGUSR2: its traces where it has some, else its web UI.

Two processes of the same router differ by a few per cent for as long as they live, so what a part costs is measured in
one. Switched off, it does what one without the part does: ``--no-ui``, or no ``--otlp_endpoint``.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from blade_router import app
from blade_router.router import Router

OFF = signal.SIGUSR1
ON = signal.SIGUSR2
Switch = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request takes in a turn with the part, in one without, and in another one without."""

    on: float
    off: float
    off_again: float

    @property
    def without(self) -> float:
        return (self.off + self.off_again) / 2.0

    @property
    def same(self) -> float:
        """Of two that should be equal, one divided by the other."""
        return self.off / self.off_again


async def in_turns(count: int, cost: Callable[[int], Awaitable[float]]) -> list[Costs]:
    """So many costs, each of three turns in random order; ``cost`` sends the router the signal that it gets, and
    measures. What is measured first warms all up, and is left out."""
    found: list[Costs] = []
    for _ in range(count + 1):
        turns = [("on", ON), ("off", OFF), ("off_again", OFF)]
        random.shuffle(turns)
        found.append(Costs(**{name: await cost(switch) for name, switch in turns}))
    return found[1:]


class SwitchedRouter(Router):
    async def __aenter__(self) -> Self:
        switch = self._switch_of_web_ui() if self._sampler is None else self._switch_of_traces()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(OFF, switch, False)
        loop.add_signal_handler(ON, switch, True)
        return await super().__aenter__()

    def _switch_of_traces(self) -> Switch:
        sampler = self._sampler

        def switch(on: bool) -> None:
            self._sampler = sampler if on else None

        return switch

    def _switch_of_web_ui(self) -> Switch:
        ui, recent = self._ui, self.proxy.recent
        assert ui is not None
        sample = ui._sampler.sample

        def sample_if_on(now: float) -> None:
            if self._ui is not None:
                sample(now)

        def switch(on: bool) -> None:
            self._ui, self.proxy.recent = (ui, recent) if on else (None, None)

        ui._sampler.sample = sample_if_on  # type: ignore[method-assign]
        return switch


if __name__ == "__main__":
    app.Router = SwitchedRouter  # type: ignore[misc]
    app.main()
