"""A router of which a part is switched off by SIGUSR1 and on by SIGUSR2: its traces where it has some, else its web UI.

Two processes of the same router differ by a few per cent for as long as they live, so what a part costs is measured in
one. Switched off, it does what one without the part does: ``--no-ui``, or no ``--otlp_endpoint``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Self

from blade_router import app
from blade_router.router import Router

OFF = signal.SIGUSR1
ON = signal.SIGUSR2
Switch = Callable[[bool], None]


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
