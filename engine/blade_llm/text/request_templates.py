"""Chat templates that requests bring, rendered in processes of their own; see :mod:`template_process`.

The processes start when first needed and are kept; one that a template has brought down is replaced by the next
request that needs it. Other requests, with the model's own template, never wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from blade_llm.piped_process import BROKEN, PipedProcess
from blade_llm.text.errors import ChatTemplateError, TemplatesBusyError
from blade_llm.text.template_process import MAX_CHARACTERS, SECONDS, Job, Rendered

_PROCESSES: Final = 2
"""Most processes at once; further requests wait."""
_MAX_WAITING: Final = 16
"""Most waiting requests; the template of each may take its whole time."""
_WAIT_SECONDS: Final = 10.0
_START_SECONDS: Final = 60.0
_EXIT_SECONDS: Final = 1.0
_MAX_SOURCE: Final = 128 * 1024
_TOO_MUCH: Final = Rendered(error=f"the chat template takes more than {SECONDS:g} s, or too much memory")


class RequestTemplates:
    """Pool of the rendering processes. Use within one running event loop."""

    def __init__(self) -> None:
        self._idle: list[PipedProcess] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_PROCESSES)
        self._waiting = 0

    async def render(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        """The prompt text. Raises :class:`ChatTemplateError`, and :class:`TemplatesBusyError` when too many wait or no
        process can be started."""
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"the chat template has more than {_MAX_SOURCE} characters")
        job = Job(source, dict(special_tokens), messages, add_generation_prompt, dict(arguments))
        try:
            payload = msgspec.msgpack.encode(job)
        except (OverflowError, RecursionError) as error:
            raise ChatTemplateError(f"the conversation cannot be put into a template of a request: {error}") from None
        async with self._slot():
            rendered = await self._render(payload)
        if rendered.error:
            raise ChatTemplateError(rendered.error)
        return rendered.text

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A slot to use one of the processes. Raises :class:`TemplatesBusyError`."""
        if self._waiting >= _MAX_WAITING:
            raise TemplatesBusyError("too many requests with a chat_template of their own wait; try again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise TemplatesBusyError(
                f"other requests' chat templates took more than {_WAIT_SECONDS:g} s; try again later"
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    async def _render(self, payload: bytes) -> Rendered:
        process = self._take()
        if process is not None:
            with contextlib.suppress(*BROKEN):  # ended while it was idle, which is no template's fault
                return await self._rendered(process, payload)
        try:
            return await self._rendered(await self._start(), payload)
        except BROKEN:
            return _TOO_MUCH

    def _take(self) -> PipedProcess | None:
        """An idle process that is alive."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
        return None

    async def _rendered(self, process: PipedProcess, payload: bytes) -> Rendered:
        """Raises one of :data:`BROKEN` when the process ended in another way than by its own alarm."""
        done = False
        try:
            async with asyncio.timeout(SECONDS + _START_SECONDS):  # its own alarm comes long before
                await process.write(payload)
                reply = await process.read()
            done = True
        except TimeoutError:
            return _TOO_MUCH
        except BROKEN:
            if await process.exit_code(_EXIT_SECONDS) == -signal.SIGALRM:
                return _TOO_MUCH
            raise
        finally:  # also when the request is cancelled: a reply nobody read would be the next request's
            if done:
                self._idle.append(process)
            else:
                self._end(process)
        return msgspec.msgpack.decode(reply, type=Rendered)

    async def _start(self) -> PipedProcess:
        """Raises :class:`TemplatesBusyError`: the machine has no room for a process, most likely."""
        try:
            process = await PipedProcess.start("blade_llm.text.template_process", limit=MAX_CHARACTERS)
        except OSError as error:
            raise TemplatesBusyError(f"the process that renders chat templates does not start: {error}") from None
        try:
            async with asyncio.timeout(_START_SECONDS):
                await process.read()
        except (TimeoutError, *BROKEN):
            self._end(process)
            raise TemplatesBusyError("the process that renders chat templates does not start") from None
        except BaseException:
            self._end(process)
            raise
        return process

    def _end(self, process: PipedProcess) -> None:
        process.kill()
        task = asyncio.get_running_loop().create_task(process.ended())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the processes, and wait until they and their pipes are gone."""
        while self._idle:
            self._end(self._idle.pop())
        await asyncio.gather(*self._ending)
