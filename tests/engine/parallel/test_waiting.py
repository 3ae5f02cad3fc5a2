"""Whatever a rank waits for, its main thread wakes now and then: one that does not is taken for one that hangs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_support.server_process import wait_until

from blade_llm.engine.ranks.activity import State, activity_of
from blade_llm.parallel.shared_memory import create_segment, is_available

CHILD = """
import sys
from blade_llm.parallel.build import join_group
from blade_llm.parallel.socket_link import SocketLink
kind, place, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "link":
    link = SocketLink(f"ipc://{place}{rank}", f"ipc://{place}{1 - rank}", rank, 2)
    wait = link.receive
else:
    group = join_group(f"{kind}:{place}", rank, 2, "cpu")
    wait = lambda: group.least(1)
print("joined", flush=True)
sys.stdin.readline() if rank else wait()
"""

Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    made: list[subprocess.Popen[bytes]] = []

    def spawn_rank(*arguments: str) -> subprocess.Popen[bytes]:
        made.append(
            subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        return made[-1]

    yield spawn_rank
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "kind",
    [pytest.param("shm", marks=pytest.mark.skipif(not is_available(), reason="no native operators")), "file", "link"],
)
def test_who_waits_for_another_rank_wakes(spawn: Spawn, tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    place: Path = create_segment(2) if kind == "shm" else tmp_path_factory.mktemp("w") / "r"
    waiting, other = (spawn(kind, str(place), str(rank)) for rank in (0, 1))
    for process in (waiting, other):
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"

    def slept(process: subprocess.Popen[bytes]) -> int:
        activity = activity_of(process.pid)
        assert activity is not None
        assert activity.switches is not None
        return activity.switches

    before = slept(waiting)
    wait_until(lambda: slept(waiting) >= before + 5)

    def hangs() -> bool:
        """As the other does, which waits for a pipe."""
        seen = activity_of(other.pid)
        return seen is not None and seen.state is State.SLEEPS and seen == activity_of(other.pid, seen)

    wait_until(hangs)
    assert waiting.poll() is None
