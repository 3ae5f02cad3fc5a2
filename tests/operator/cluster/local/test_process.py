"""Programs that end while no control loop watches them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from operator_support.local import alive, until

from blade_operator.cluster.local.process import Process, ProcessId

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
sys.stdin.read()
"""


def start() -> tuple[subprocess.Popen[bytes], ProcessId, int]:
    """A program with a session of its own, who it is, and its child."""
    program = subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert program.stdout is not None
    child = int(program.stdout.readline())
    identity = ProcessId.of(program.pid)
    assert identity is not None
    return program, identity, child


async def test_what_a_program_leaves_behind_ends_when_it_cannot_be_adopted() -> None:
    program, identity, child = start()
    assert program.stdin is not None
    program.stdin.close()
    program.wait(20)
    assert alive(child)
    assert Process.adopt(identity) is None
    await until(lambda: not alive(child))


@pytest.mark.parametrize("other", ["boot", "start"])
async def test_another_program_of_its_number_is_left_alone(other: str) -> None:
    program, identity, child = start()
    different = replace(identity, boot="earlier") if other == "boot" else replace(identity, start=identity.start - 1)
    assert Process.adopt(different) is None
    assert alive(child)
    assert alive(program.pid)
    adopted = Process.adopt(identity)
    assert adopted is not None
    adopted.kill()
    program.wait(20)
    await until(lambda: not alive(child))
