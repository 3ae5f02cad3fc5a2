"""Ranks on hosts with several NUMA nodes: invented ones, since tests run on one; and that nothing happens there."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from blade_llm.runner.startup import numa
from blade_llm.runner.startup.numa import NumaNode, RankPlace, bind_rank, place_ranks, rank_cores, read_nodes


def node(number: int, cpus: Sequence[int]) -> NumaNode:
    return NumaNode(number, tuple((cpu,) for cpu in cpus))


TWO_SOCKETS = [node(0, range(4)), node(1, range(4, 8))]


def of(places: list[RankPlace] | None) -> list[tuple[list[int], tuple[int, ...]]]:
    assert places is not None
    return [(sorted(place.cpus), place.nodes) for place in places]


def test_two_ranks_have_a_socket_each() -> None:
    assert of(place_ranks(TWO_SOCKETS, 2)) == [([0, 1, 2, 3], (0,)), ([4, 5, 6, 7], (1,))]


def test_four_ranks_have_half_a_socket_each() -> None:
    assert of(place_ranks(TWO_SOCKETS, 4)) == [([0, 1], (0,)), ([2, 3], (0,)), ([4, 5], (1,)), ([6, 7], (1,))]


def test_two_ranks_have_two_of_four_nodes_each() -> None:
    nodes = [node(number, [2 * number, 2 * number + 1]) for number in range(4)]
    assert of(place_ranks(nodes, 2)) == [([0, 1, 2, 3], (0, 1)), ([4, 5, 6, 7], (2, 3))]


def test_parts_are_equal_where_nodes_are_not() -> None:
    uneven = [node(0, range(6)), node(1, [6, 7])]
    assert of(place_ranks(uneven, 2)) == [([0, 1, 2, 3], (0,)), ([4, 5, 6, 7], (0, 1))]
    places = of(place_ranks(TWO_SOCKETS, 3))
    assert [len(cpus) for cpus, _ in places] == [2, 3, 3]
    assert sorted(cpu for cpus, _ in places for cpu in cpus) == list(range(8))


def test_hyper_threads_stay_together() -> None:
    nodes = [NumaNode(0, ((0, 4), (1, 5))), NumaNode(1, ((2, 6), (3, 7)))]
    assert of(place_ranks(nodes, 2)) == [([0, 1, 4, 5], (0,)), ([2, 3, 6, 7], (1,))]
    assert of(place_ranks(nodes, 4))[1] == ([1, 5], (0,))


@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [
        ([node(0, range(8))], 2),
        ([node(0, range(8)), node(1, [])], 2),  # a cpuset that covers one node, or a node of memory alone
        (TWO_SOCKETS, 1),
        (TWO_SOCKETS, 9),
        ([], 2),
    ],
)
def test_there_may_be_nothing_to_choose(nodes: list[NumaNode], ranks: int) -> None:
    assert place_ranks(nodes, ranks) is None


def host(root: Path, cpulists: dict[int, str], siblings: dict[int, str] | None = None) -> Path:
    """A ``/sys`` with these nodes."""
    for number, cpulist in cpulists.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    for cpu, listed in (siblings or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{listed}\n")
    return root


def test_nodes_are_read_within_what_is_allowed(tmp_path: Path) -> None:
    root = host(tmp_path, {10: "", 1: "2-3,6-7", 0: "0-1,4-5"}, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"})
    assert read_nodes(range(8), root) == [
        NumaNode(0, ((0, 4), (1, 5))),
        NumaNode(1, ((2,), (3,), (6,), (7,))),
        NumaNode(10, ()),
    ]
    assert read_nodes({1, 3}, root) == [NumaNode(0, ((1,),)), NumaNode(1, ((3,),)), NumaNode(10, ())]
    assert read_nodes({0, 1}, tmp_path / "none") == []


def test_one_node_changes_nothing_and_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    with caplog.at_level(logging.INFO):
        assert bind_rank(0, 2, host(tmp_path, {0: "0-1023"})) is None
    assert os.sched_getaffinity(0) == before
    assert caplog.records == []


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[set[int]]]:
    """A host with two nodes of two cores, and what this process was bound to there."""
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: bound[-1] if bound else {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(set(cpus)))
    monkeypatch.setattr(numa, "_bound", False)
    monkeypatch.setattr(numa, "_prefer_memory", lambda nodes: "")
    return host(tmp_path, {0: "0-1", 1: "2-3"}), bound


def test_a_rank_is_bound_and_has_the_threads_of_its_cores(
    two_nodes: tuple[Path, list[set[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    root, bound = two_nodes
    assert rank_cores(2, root) == 2
    with caplog.at_level(logging.INFO):
        assert bind_rank(1, 2, root, {}) == RankPlace(frozenset({2, 3}), (1,))
    assert bound == [{2, 3}]
    assert [record.getMessage() for record in caplog.records] == ["rank 1 of this host has 2 CPUs of NUMA node 1"]
    assert rank_cores(2, root) == 2
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("200000 100000\n")
    assert rank_cores(2, root) == 1  # the quota is of both


def test_what_the_user_has_bound_stays(
    two_nodes: tuple[Path, list[set[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    root, bound = two_nodes
    with caplog.at_level(logging.INFO):
        assert bind_rank(0, 2, root, {"OMP_PROC_BIND": "false"}) is None
    assert bound == []
    assert "2 ranks are not bound to 2 NUMA nodes, since OMP_PROC_BIND is set" in caplog.text


def test_without_permission_nothing_changes(
    two_nodes: tuple[Path, list[set[int]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(pid: int, cpus: set[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    assert bind_rank(0, 2, two_nodes[0], {}) is None
    assert "2 ranks are not bound to 2 NUMA nodes: Operation not permitted" in caplog.text
    assert rank_cores(2, two_nodes[0]) == 2


def test_memory_that_may_not_be_bound_is_said(
    two_nodes: tuple[Path, list[set[int]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numa, "_prefer_memory", lambda nodes: "Operation not permitted")
    with caplog.at_level(logging.INFO):
        assert bind_rank(0, 2, two_nodes[0], {}) is not None
    assert "memory goes where it is first written: Operation not permitted" in caplog.text


_BIND = """
import json, os, sys, threading
from pathlib import Path
from blade_llm.runner.startup.numa import _prefer_memory, bind_rank
place = bind_rank(int(sys.argv[2]), 2, Path(sys.argv[1]), {})
inherited = []
thread = threading.Thread(target=lambda: inherited.append(sorted(os.sched_getaffinity(0))))
thread.start(); thread.join()
policy = Path("/proc/self/numa_maps")
here = policy.read_text().split()[1] if policy.exists() else ""
print(json.dumps([sorted(place.cpus), sorted(os.sched_getaffinity(0)), *inherited, _prefer_memory([0]), here]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to divide")
def test_a_process_and_its_threads_stay_on_the_cores(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    root = host(tmp_path, {0: str(first), 1: str(second)})
    for rank, cpu in enumerate((first, second)):
        output = subprocess.run(
            [sys.executable, "-c", _BIND, str(root), str(rank)], capture_output=True, text=True, check=True
        ).stdout
        cpus, own, inherited, problem, policy = json.loads(output)
        assert cpus == own == inherited == [cpu]
        assert problem in ("", os.strerror(1))  # containers may forbid it
        assert problem or policy in ("", "prefer:0", "prefer", "default")
