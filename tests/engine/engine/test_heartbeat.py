"""The engine process shows that a step goes on, as long as it computes and no longer than a step can take."""

from __future__ import annotations

import array
import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from engine_support.server_process import wait_until

from blade_llm.engine.heartbeat import MOST_STEP_SECONDS, Heartbeat, cpu_seconds

INTERVAL = 0.01


class Process:
    """A process whose clocks a test sets, and its heartbeat."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cpu_share = 1.0
        self.beat = memoryview(array.array("d", [0.0]))
        self.looks = 0
        self._cpu = 0.0
        self.heartbeat = Heartbeat(self.beat, interval=INTERVAL, clock=lambda: self.now, cpu_time=self._cpu_time)

    def beats(self) -> bool:
        """Whether there is a beat in some intervals from now."""
        self.beat[0] = 0.0
        looks = self.looks
        wait_until(lambda: self.looks >= looks + 6)
        return self.beat[0] > 0.0

    def _cpu_time(self) -> float:
        self.looks += 1
        self._cpu += INTERVAL * self.cpu_share
        return self._cpu


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.heartbeat.close()


def test_a_step_that_computes_beats_and_one_that_waits_does_not(process: Process) -> None:
    process.heartbeat.step_begins()
    assert process.beats()
    process.cpu_share = 0.0
    assert not process.beats()
    process.cpu_share = 0.05  # a busy machine
    assert process.beats()


def test_a_step_that_never_ends_stops_beating(process: Process) -> None:
    process.heartbeat.step_begins()
    process.now += MOST_STEP_SECONDS - 1
    assert process.beats()
    process.now += 2
    assert not process.beats()
    process.heartbeat.step_begins()
    assert process.beats()


def test_an_idle_engine_wakes_nobody(process: Process) -> None:
    process.heartbeat.step_begins()
    assert process.beats()
    process.heartbeat.idle()
    time.sleep(3 * INTERVAL)
    looks = process.looks
    time.sleep(5 * INTERVAL)
    assert process.looks == looks
    process.heartbeat.step_begins()
    assert process.beats()


def test_work_in_any_thread_counts() -> None:
    beat = memoryview(array.array("d", [0.0]))
    heartbeat = Heartbeat(beat, interval=INTERVAL)
    heartbeat.step_begins()
    try:
        wait_until(lambda: beat[0] > 0.0 or sum(range(10_000)) < 0)
    finally:
        heartbeat.close()


def test_cpu_time_of_other_processes_is_that_of_those_that_live() -> None:
    assert cpu_seconds([os.getpid()]) > 0.0
    child = subprocess.Popen(["true"])
    child.wait()
    assert cpu_seconds([child.pid]) == 0.0
    assert cpu_seconds([]) == 0.0
