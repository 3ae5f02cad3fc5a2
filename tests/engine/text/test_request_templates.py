"""Chat templates of requests: processes that die, templates that loop, and too many of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
import uvloop

from blade_llm.text import request_templates
from blade_llm.text.errors import ChatTemplateError, TemplatesBusyError
from blade_llm.text.request_templates import RequestTemplates

TALK: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


async def _render(templates: RequestTemplates, source: str = "{{ messages[0].content }}") -> str:
    return await templates.render(source, {}, TALK, add_generation_prompt=True, arguments={})


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_idle_process_that_is_gone_is_replaced(run: Any, pause: float) -> None:
    """At once, before its end is known, and later."""

    async def scenario() -> None:
        templates = RequestTemplates()
        assert await _render(templates) == "hello"
        (process,) = templates._idle
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(pause)
        assert await _render(templates) == "hello"
        await templates.close()

    run(scenario())


async def test_a_template_that_loops_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = RequestTemplates()
    assert await _render(templates) == "hello"

    async def start() -> asyncio.subprocess.Process:
        raise AssertionError("a second process for one template")

    monkeypatch.setattr(templates, "_start", start)
    with pytest.raises(ChatTemplateError, match="more than 2 s"):
        await _render(templates, LOOP)
    await templates.close()


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
async def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr(sys, "executable", python)
    templates = RequestTemplates()
    with pytest.raises(TemplatesBusyError, match="not start"):
        await _render(templates)
    await templates.close()


async def test_a_process_that_ended_without_its_reply_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that ends before has no way to close its pipes."""
    ended = 0
    wait = asyncio.subprocess.Process.wait

    async def slow(process: asyncio.subprocess.Process) -> int:
        nonlocal ended
        await asyncio.sleep(0.2)
        code = await wait(process)
        ended += 1
        return code

    templates = RequestTemplates()
    monkeypatch.setattr(asyncio.subprocess.Process, "wait", slow)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TemplatesBusyError, match="not start"):
        await _render(templates)
    await templates.close()
    assert ended == 1


async def test_few_wait_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_templates, "_WAIT_SECONDS", 0.2)
    templates = RequestTemplates()

    async def slow(payload: bytes) -> object:
        await asyncio.sleep(60)
        raise AssertionError(payload)

    monkeypatch.setattr(templates, "_render", slow)
    tasks = [asyncio.ensure_future(_render(templates)) for _ in range(request_templates._PROCESSES + 16)]
    await asyncio.sleep(0)
    with pytest.raises(TemplatesBusyError, match="too many"):
        await _render(templates)
    done, running = await asyncio.wait(tasks, timeout=2)
    assert len(running) == request_templates._PROCESSES
    assert all("took more than 0.2 s" in str(task.exception()) for task in done)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    monkeypatch.undo()
    assert await _render(templates) == "hello"
    await templates.close()
