"""Real processes of further ranks, without a model: they get what is sent, and nothing survives what kills one."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from engine_support.fake_ranks import (
    MEETS,
    RAISES,
    SLOW,
    STOPS,
    STUCK,
    abort,
    config_for,
    masks_of_words,
    meet,
    plan_of,
    received,
)
from engine_support.idle import wait_for_sleep
from engine_support.server_process import TESTS, gone, wait_until

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.ranks.activity import activity_of
from blade_llm.engine.ranks.hangs import HANG_LOOKS
from blade_llm.engine.ranks.lost import RankFailedError, RankUserError
from blade_llm.engine.ranks.messages import encode_forward, encode_release_cache, encode_sampling
from blade_llm.engine.ranks.processes import RankProcesses
from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.vision.images import ImagePixels

Start = Callable[..., RankProcesses]


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", "")))))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ranks; in the end nothing of them is left."""
    made: list[RankProcesses] = []

    def start_ranks(size: int = 3, build: str = "recording", ready: bool = True) -> RankProcesses:
        ranks = RankProcesses(size, build=f"engine_support.fake_ranks:{build}", socket_dir=tmp_path)
        made.append(ranks)
        ranks.start(config_for(tmp_path), group="")
        if ready:
            ranks.wait_ready(60)
        return ranks

    yield start_ranks
    for ranks in made:
        pids = ranks.pids
        ranks.close()
        ranks.close()
        assert all(gone(pid) for pid in pids)
    assert not list(tmp_path.glob("blade_llm-*"))


def steps(count: int) -> list[bytes]:
    """The messages of some steps, with masks and without."""
    messages = []
    for step in range(count):
        masks = masks_of_words([0, 1], 40, step) if step % 2 else None
        messages += [encode_forward(plan_of(step, 3, sample=step % 3 > 0)), encode_sampling(masks)]
    return messages


def arrived(folder: Path, rank: int, count: int) -> bool:
    return len(received(folder, rank)) == count


@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_rank_gets_every_step_in_order(start: Start, tmp_path: Path, size: int) -> None:
    ranks = start(size)
    assert not list(tmp_path.glob("blade_llm-*")), "the sockets' folder has done its duty"
    sent = [*steps(50), encode_release_cache(), *steps(1)]
    for message in sent:
        ranks.send(message)
    for rank in range(1, size):
        wait_until(partial(arrived, tmp_path, rank, len(sent)))
        assert received(tmp_path, rank) == sent


def test_every_rank_gets_the_pixels_of_a_step(start: Start, tmp_path: Path) -> None:
    ranks = start(3)
    pixels = [bytes([seed]) * (1 << 20) for seed in (1, 2)]
    images = [ImagePixels(each[:32], (1, 2, 2), (1, 1, 1 << 20, 1), each) for each in pixels]
    plan = StepPlan(1, plan_of(1).chunks, new_images=images)
    sent = [encode_forward(plan), *pixels, encode_sampling(None)]
    ranks.send(sent[0], pixels)
    ranks.send(sent[-1])
    for rank in (1, 2):
        wait_until(partial(arrived, tmp_path, rank, len(sent)))
        assert received(tmp_path, rank) == sent


def test_a_slow_rank_loses_nothing(start: Start, tmp_path: Path) -> None:
    """What it has not run yet waits in memory, far beyond ZeroMQ's thousand messages."""
    ranks = start(2)
    sent = [encode_forward(plan_of(SLOW)), *([encode_sampling(None), encode_forward(plan_of(0, 64))] * 1500)]
    for message in sent:
        ranks.send(message)
    assert len(received(tmp_path, 1)) <= 1, "rank 0 does not wait"
    wait_until(lambda: len(received(tmp_path, 1)) == len(sent))
    assert received(tmp_path, 1) == sent
    ranks.raise_if_lost()


def test_an_idle_rank_uses_no_cpu(start: Start) -> None:
    wait_for_sleep(start().pids)


def test_an_idle_rank_does_not_hang(start: Start) -> None:
    """It wakes, which the kernel counts, for longer than it may do nothing."""
    ranks = start(2)

    def sleeps() -> int:
        activity = activity_of(ranks.pids[0])
        assert activity is not None
        return activity.switches or 0

    before = sleeps()
    wait_until(lambda: sleeps() >= before + HANG_LOOKS + 2)
    ranks.raise_if_lost()


def test_a_killed_rank_is_known_at_once(start: Start) -> None:
    ranks = start()
    seen: list[tuple[int, str]] = []
    known = threading.Event()

    def on_lost(rank: int, failure: EngineFailure) -> None:
        seen.append((rank, failure.message))
        known.set()

    ranks.watch(on_lost)
    ranks.raise_if_lost()
    os.kill(ranks.pids[1], signal.SIGKILL)
    assert known.wait(60)
    rank, message = seen[0]
    assert rank == 2
    assert message.startswith("rank 2 was ended by SIGKILL; the kernel does this when memory runs out")
    assert select.select([ranks.lost_descriptor], [], [], 0)[0]
    assert ranks.lost is not None
    assert ranks.lost.rank == 2
    with pytest.raises(RankFailedError, match="rank 2 was ended by SIGKILL"):
        ranks.raise_if_lost()


def test_a_killed_rank_ends_the_collective_that_waits_for_it(start: Start, tmp_path: Path) -> None:
    ranks = start(3)
    ranks.watch(lambda rank, failure: abort(tmp_path))
    ranks.send(encode_forward(plan_of(MEETS)))
    wait_until(lambda: all(received(tmp_path, rank) for rank in (1, 2)))
    threading.Timer(0.2, os.kill, (ranks.pids[0], signal.SIGKILL)).start()
    with pytest.raises(RankFailedError, match=r"^rank 1 was ended by SIGKILL"):
        with ranks.naming_the_rank():
            meet(tmp_path)
    ranks.close()


def test_an_exception_in_a_step_is_rank_0s_too(start: Start, tmp_path: Path) -> None:
    ranks = start(3)
    ranks.watch(lambda rank, failure: abort(tmp_path))
    ranks.send(encode_forward(plan_of(RAISES)))
    with pytest.raises(RankFailedError, match=r"^rank 1: ValueError: the step is bad$") as raised:
        with ranks.naming_the_rank():
            meet(tmp_path)
    assert not raised.value.failure.user_error
    assert "launch_forward" in raised.value.failure.traceback
    ranks.close()


def test_a_user_error_at_the_start_stays_one(start: Start, tmp_path: Path) -> None:
    ranks = start(4, "too_large", ready=False)
    ranks.watch(lambda rank, failure: abort(tmp_path))
    with pytest.raises(RankUserError, match=r"^rank 2: the weights do not fit; lower --kv_cache_bytes to 1$") as raised:
        ranks.wait_ready(60)
    assert raised.value.failure.user_error


def test_a_rank_that_does_not_get_ready_is_named(start: Start, tmp_path: Path) -> None:
    ranks = start(3, "never_ready", ready=False)
    wait_until((tmp_path / "rank-2").exists)
    with pytest.raises(RankFailedError, match=r"^rank 1 is not ready after 1 s$"):
        ranks.wait_ready(1)
    ranks.kill()


def test_a_build_that_does_not_exist_is_reported(start: Start) -> None:
    ranks = start(2, "nothing", ready=False)
    with pytest.raises(RankFailedError, match=r"^rank 1: AttributeError: .*nothing"):
        ranks.wait_ready(60)


def test_two_ranks_of_one_number_are_refused(start: Start) -> None:
    ranks = start(3, "twice", ready=False)
    with pytest.raises(RankFailedError, match=r"^rank 1 is there twice"):
        ranks.wait_ready(60)
    ranks.kill()


def test_another_version_is_refused_by_rank_0(start: Start) -> None:
    ranks = start(2, "renewed", ready=False)
    with pytest.raises(RankFailedError, match=r"^rank 1 runs version 9\.9 and rank 0 version .*: install one version"):
        ranks.wait_ready(60)


def test_another_version_is_refused_by_the_rank(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it loads anything."""
    monkeypatch.setattr("blade_llm.engine.ranks.processes.package_version", lambda: "9.9")
    ranks = start(2, ready=False)
    with pytest.raises(RankFailedError, match=r"^rank 1 runs version .* and rank 0 version 9\.9: install one version"):
        ranks.wait_ready(60)
    assert not (tmp_path / "rank-1").exists()


def test_the_end_of_rank_0_ends_ranks_that_are_stopped(start: Start) -> None:
    ranks = start()
    for pid in ranks.pids:
        os.kill(pid, signal.SIGSTOP)
    ranks.close()


def test_a_forgotten_engine_leaves_nothing(tmp_path: Path) -> None:
    ranks = RankProcesses(3, build="engine_support.fake_ranks:recording", socket_dir=tmp_path)
    ranks.start(config_for(tmp_path), group="")
    pids = ranks.pids
    del ranks
    gc.collect()
    assert all(gone(pid) for pid in pids)
    assert not list(tmp_path.glob("blade_llm-*"))


def test_ranks_that_were_never_started_are_stopped(tmp_path: Path) -> None:
    ranks = RankProcesses(2, build="engine_support.fake_ranks:recording", socket_dir=tmp_path)
    (pid,) = ranks.pids
    ranks.close()
    assert gone(pid)
    assert not list(tmp_path.glob("blade_llm-*"))


def test_the_thread_that_makes_an_engine_may_end(tmp_path: Path) -> None:
    """The kernel takes the end of the thread that made a process for the end of its parent."""
    with ThreadPoolExecutor(1) as executor:
        ranks = executor.submit(
            RankProcesses, 2, build="engine_support.fake_ranks:recording", socket_dir=tmp_path
        ).result()
    ranks.start(config_for(tmp_path), group="")
    ranks.wait_ready(60)
    ranks.send(encode_forward(plan_of(1)))
    wait_until(lambda: len(received(tmp_path, 1)) == 1)
    ranks.raise_if_lost()
    ranks.close()


def test_a_rank_that_is_late_is_named_by_the_collective(start: Start, tmp_path: Path) -> None:
    """As one that computes for ever is."""
    ranks = start()
    ranks.send(encode_forward(plan_of(SLOW)))
    with pytest.raises(RankFailedError, match=r"^rank 1 did not come to a collective in 0\.1 s$"):
        with ranks.naming_the_rank():
            meet(tmp_path, seconds=0.1)


@pytest.mark.parametrize(
    ("step", "how"),
    [
        (STOPS, r"was stopped \(SIGSTOP\) and did not go on within 3 s"),
        (STUCK, "has done nothing for 3 s, not even what a rank does that waits"),
    ],
)
def test_a_rank_that_hangs_ends_the_collective_that_waits_for_it(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str], step: int, how: str
) -> None:
    ranks = start(2)
    ranks.watch(lambda rank, failure: abort(tmp_path))
    ranks.send(encode_forward(plan_of(step)))
    with pytest.raises(RankFailedError, match=f"^rank 1 hangs: its process {how}$"):
        with ranks.naming_the_rank():
            meet(tmp_path)
    ranks.close()
    shows_where = 'fake_ranks.py", line' in capfd.readouterr().err
    assert shows_where == (step == STUCK)
