"""One timer looks at all streams that may be silent, however many there are."""

from __future__ import annotations

import asyncio
from typing import Any

from blade_llm.api.common.comments import StreamComments

INTERVAL = 0.1


class Silent:
    """A stream that counts its comments."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.comments = 0
        self.done = asyncio.Event()

    def comment(self) -> None:
        self.comments += 1
        if self.comments == 2:
            self.done.set()


class Speaking(Silent):
    """It has sent something whenever it is looked at."""

    @property
    def num_sent(self) -> int:
        self._sent += 1
        return self._sent

    @num_sent.setter
    def num_sent(self, value: int) -> None:
        self._sent = value


async def test_thousands_of_silent_streams_share_one_timer(monkeypatch: Any) -> None:
    loop = asyncio.get_running_loop()
    timers: list[Any] = []
    later = loop.call_later

    def counted(*arguments: Any, **options: Any) -> Any:
        timers.append(later(*arguments, **options))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", counted)
    comments = StreamComments(INTERVAL)
    streams = [Silent() for _ in range(5000)]
    tasks = len(asyncio.all_tasks())
    for stream in streams:
        comments.watch(stream)
    assert len(timers) == 1
    await asyncio.gather(*(stream.done.wait() for stream in streams))
    assert min(stream.comments for stream in streams) >= 2
    assert len(timers) < 100, "one after the other, for all of them"
    assert len(asyncio.all_tasks()) == tasks
    for stream in streams:
        comments.leave(stream)
    seen = len(timers)
    await asyncio.sleep(INTERVAL)
    assert len(timers) <= seen + 1, "nobody is looked at, so nothing ticks"


async def test_what_speaks_gets_none_and_0_is_never() -> None:
    speaking, silent, never = Speaking(), Silent(), Silent()
    comments = StreamComments(INTERVAL)
    comments.watch(speaking)
    comments.watch(silent)
    StreamComments(0.0).watch(never)
    await silent.done.wait()
    assert (speaking.comments, never.comments) == (0, 0)
    comments.leave(speaking)
    comments.leave(silent)
    comments.leave(never)


async def test_a_stream_that_fails_takes_no_other_with_it() -> None:
    class Failing(Silent):
        def comment(self) -> None:
            super().comment()
            raise OSError("broken")

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    failing, silent = Failing(), Silent()
    comments = StreamComments(INTERVAL)
    comments.watch(failing)
    comments.watch(silent)
    await asyncio.wait_for(silent.done.wait(), 30)
    assert failing.comments
    assert {str(failure) for failure in failures} == {"broken"}
    comments.leave(failing)
    comments.leave(silent)
