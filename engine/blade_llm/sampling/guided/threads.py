"""Threads for work in a library that may be stuck: the process does not wait for them when it ends.

``ThreadPoolExecutor`` joins its threads then, so that one grammar could keep a server from stopping.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class DaemonThreads:
    """At most ``count`` threads that work in the order of :meth:`submit`."""

    def __init__(self, count: int, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = count
        self._num_started = 0
        self._closed = False

    def submit(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """The result of ``work(*arguments)``. Raises :class:`RuntimeError` once closed."""
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            self._tasks.put((future, work, arguments))
            if self._num_started < self._count:
                self._num_started += 1
                name = f"{self._name}_{self._num_started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """Cancel what has not begun. Threads end after their present task; nobody waits for them."""
        cancelled: list[Future[Any]] = []
        with self._lock:
            self._closed = True
            try:
                while True:
                    if (task := self._tasks.get_nowait()) is not None:
                        cancelled.append(task[0])
            except queue.Empty:
                pass
            for _ in range(self._num_started):
                self._tasks.put(None)
        for future in cancelled:  # outside the lock: a callback may submit, and be refused
            future.cancel()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            _carry_out(*task)
            del task  # the next may be long in coming


def _carry_out(future: Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
