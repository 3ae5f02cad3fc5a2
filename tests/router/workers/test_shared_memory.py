"""Workers share numbers: each writes its own, all read the sum, and none that died is counted."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import pytest

from blade_protocol.routing import Limits
from blade_router.admission.limits import Quotas
from blade_router.admission.window import slot_of
from blade_router.workers.shared_memory import SIZE, PrivateRow, RowsExhausted, SharedColumns, SharedMemory

FORK = multiprocessing.get_context("fork")
LIMIT = 100_000


@contextmanager
def memory_file(size: int = SIZE) -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    try:
        yield fd
    finally:
        os.close(fd)


def test_every_worker_reads_the_sum() -> None:
    with memory_file() as fd:
        rows = [SharedColumns(SharedMemory(fd, worker, 2), "counts", 4).open("engine-a") for worker in (0, 1)]
        rows[0].add(2)
        rows[1].add(5)
        assert [row.total() for row in rows] == [7, 7]


def test_rows_are_found_by_name_whoever_comes_first() -> None:
    with memory_file() as fd:
        left, right = (SharedColumns(SharedMemory(fd, worker, 2), "counts", 4) for worker in (0, 1))
        left.open("a").add(1)
        right.open("b").add(10)
        assert left.open("b").total() == 10
        assert right.open("a").total() == 1


def test_tables_do_not_touch_each_other() -> None:
    with memory_file() as fd:
        memory = SharedMemory(fd, 1, 2)
        one, other = SharedColumns(memory, "one", 3, width=2), SharedColumns(memory, "other", 3)
        rows = [one.open("x"), one.open("y"), other.open("x")]
        for number, row in enumerate(rows, 1):
            row.add(number, row.own.nbytes // 8 - 1)
        assert [row.total(row.own.nbytes // 8 - 1) for row in rows] == [1, 2, 3]
        assert rows[0].total(0) == 0


def test_a_worker_started_again_leaves_nothing_behind() -> None:
    with memory_file() as fd:
        rows = [SharedColumns(SharedMemory(fd, worker, 2), "counts", 4).open("a") for worker in (0, 1)]
        rows[0].add(3)
        rows[1].add(4)
        again = SharedMemory(fd, 1, 2)
        assert rows[0].total() == 3, "what the dead worker had is not counted, what the others have is"
        assert SharedColumns(again, "counts", 4).open("a").total() == 3


def test_a_row_is_free_when_the_last_worker_closed_it() -> None:
    with memory_file() as fd:
        left, right = (SharedColumns(SharedMemory(fd, worker, 2), "counts", 1) for worker in (0, 1))
        row, same = left.open("a"), right.open("a")
        same.add(7)
        row.close()
        with pytest.raises(RowsExhausted):
            left.open("b")
        same.close()
        assert left.open("b").total() == 0


def test_workers_must_agree_on_a_table() -> None:
    with memory_file() as fd:
        SharedColumns(SharedMemory(fd, 0, 2), "counts", 4)
        with pytest.raises(ValueError, match="counts"):
            SharedColumns(SharedMemory(fd, 1, 2), "counts", 5)
        with pytest.raises(ValueError, match="bytes"):
            SharedColumns(SharedMemory(fd, 1, 2), "huge", SIZE)
        with pytest.raises(ValueError, match="worker 2 of 2"):
            SharedMemory(fd, 2, 2)


def test_a_foreign_file_is_refused() -> None:
    with memory_file() as fd:
        os.pwrite(fd, b"something", 0)
        with pytest.raises(ValueError, match="something else"):
            SharedMemory(fd)


def test_a_row_of_ones_own_works_alike() -> None:
    row = PrivateRow(2)
    row.add(3, 1)
    assert (row.total(0), row.total(1)) == (0, 3)


def test_limits_that_find_no_row_are_split_between_workers() -> None:
    with memory_file(64 << 10) as fd:
        quotas = Quotas(SharedMemory(fd, 0, 2))
        wanted = {f"key {number}": Limits(requests_per_minute=10) for number in range(200)}
        found = quotas.configure(wanted)
        shared, alone = found["key 0"], found["key 199"]

        def passes(name: str) -> int:
            quota, slot, count = found[name], slot_of(1000.0), 0
            while quota.admits(0, slot):
                quota.take(0, slot)
                count += 1
            return count

        assert (passes("key 0"), passes("key 199")) == (10, 5)
        assert shared is not alone


def _take_quota(fd: int, worker: int, results: Connection, go: Event) -> None:
    """Run as a worker that admits all it may, 100 tokens each, and sends how many."""
    quota = Quotas(SharedMemory(fd, worker, 2)).configure({"key a": Limits(tokens_per_minute=LIMIT, concurrent=0)})[
        "key a"
    ]
    results.send("ready")
    go.wait()
    count, slot = 0, slot_of(5000.0)
    while quota.admits(100, slot):
        quota.take(100, slot)
        count += 1
    results.send(count)


def test_two_processes_honour_one_token_limit() -> None:
    with memory_file() as fd:
        go = FORK.Event()
        pipes = [FORK.Pipe() for _ in range(2)]
        workers = [FORK.Process(target=_take_quota, args=(fd, worker, pipes[worker][1], go)) for worker in range(2)]
        for worker in workers:
            worker.start()
        assert [here.recv() for here, _ in pipes] == ["ready", "ready"]
        go.set()
        counts = [here.recv() for here, _ in pipes]
        for worker in workers:
            worker.join()
        assert LIMIT <= 100 * sum(counts) <= 1.05 * LIMIT, counts
