"""Chat templates that requests bring, rendered in processes of their own; see :mod:`template_process`.

The processes start when first needed and are kept; one that a template has brought down is replaced by the next
request that needs it. Other requests, with the model's own template, never wait for them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from blade_llm.text.errors import ChatTemplateError
from blade_llm.text.template_process import LENGTH_BYTES, MAX_CHARACTERS, SECONDS, Job, Rendered

_PROCESSES: Final = 2
"""At once; more requests wait."""
_START_SECONDS: Final = 60.0
_MAX_SOURCE: Final = 128 * 1024


class RequestTemplates:
    """Use within one running event loop."""

    def __init__(self) -> None:
        self._idle: list[asyncio.subprocess.Process] = []
        self._free = asyncio.Semaphore(_PROCESSES)

    async def render(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        """The prompt text. Raises :class:`ChatTemplateError`."""
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"the chat template has more than {_MAX_SOURCE} characters")
        job = Job(source, dict(special_tokens), messages, add_generation_prompt, dict(arguments))
        try:
            payload = msgspec.msgpack.encode(job)
        except (OverflowError, RecursionError) as error:
            raise ChatTemplateError(f"the conversation cannot be put into a template of a request: {error}") from None
        async with self._free:
            rendered = await self._render(payload)
        if rendered.error:
            raise ChatTemplateError(rendered.error)
        return rendered.text

    async def _render(self, payload: bytes) -> Rendered:
        process = self._idle.pop() if self._idle else await _start()
        done = False
        try:
            async with asyncio.timeout(SECONDS + _START_SECONDS):  # its own alarm comes long before
                answer = await _ask(process, payload)
            done = True
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return Rendered(error=f"the chat template takes more than {SECONDS:g} s, or too much memory")
        finally:  # also when the request is cancelled: an answer nobody took would be the next one's
            if done:
                self._idle.append(process)
            else:
                _end(process)
        return msgspec.msgpack.decode(answer, type=Rendered)

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            process = self._idle.pop()
            _end(process)
            await process.wait()


async def _start() -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "blade_llm.text.template_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_CHARACTERS,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},  # no secrets
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            await _read(process)
    except BaseException:
        _end(process)
        raise
    return process


async def _ask(process: asyncio.subprocess.Process, payload: bytes) -> bytes:
    assert process.stdin is not None
    process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)
    await process.stdin.drain()
    return await _read(process)


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "little")
    return await process.stdout.readexactly(length)


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
