"""What is made of what machines said about themselves."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.check.ranks.all_reduce import Measured, first_cause
from blade_llm.check.ranks.judge import judge
from blade_llm.check.ranks.meeting import Machine, Meeting, Place
from blade_llm.check.ranks.messages import Hello
from blade_llm.engine.nodes.address import Address
from blade_protocol.check import CheckItem


def machine(rank: int, measured: Measured | None = None, **other: Any) -> Machine:
    fields: dict[str, Any] = {"blade_llm": "1.0", "torch": "2.11", "gpus": 0, **other}
    hello = Hello(node_rank=rank, nnodes=2, host=f"pod-{rank}", instance=str(rank), **fields)
    return Machine(hello=hello, measured=measured or Measured(small_seconds=1e-4, large_seconds=0.01))


def judged(*machines: Machine) -> tuple[CheckItem, ...]:
    place = Place(address=Address("leader", 29500), seconds=60.0)
    return judge(Meeting(place=place, nnodes=2, machines=dict(enumerate(machines)), seconds=3.0))


def test_all_is_well() -> None:
    items = judged(machine(0), machine(1))
    assert [item.status for item in items] == ["PASS"] * 4
    assert items[0].detail == "2 machines met at leader:29500 after 3.0 s: 0 (pod-0), 1 (pod-1)"
    assert items[1].detail == "blade_llm 1.0, torch 2.11"
    assert items[2].detail == "clocks differ by 0 ms at most"
    assert items[3].detail == (
        "gloo over TCP between 2 machines: an all-reduce of 16 KiB takes 100 us, of 16 MiB 10.0 ms (1.68 GB/s), as "
        "machine 0 (pod-0) has it"
    )
    assert "NCCL between 2 machines" in judged(machine(0, gpus=8), machine(1, gpus=8))[3].detail


@pytest.mark.parametrize("field", ["blade_llm", "torch"])
def test_another_version_fails(field: str) -> None:
    item = judged(machine(0), machine(1, **{field: "9"}))[1]
    assert item.status == "FAILED"
    assert f"machine 1 (pod-1) has {field} 9" in item.detail
    assert "start all from one image" in item.detail


def test_machines_with_other_numbers_of_gpus_fail() -> None:
    items = judged(machine(0, gpus=8), machine(1, gpus=4))
    assert items[0].detail == "machine 0 (pod-0) has 8 GPUs, machine 1 (pod-1) 4; give all as many"
    assert [item.status for item in items] == ["FAILED"] * 4


def test_a_slow_network_warns_and_names_the_slowest() -> None:
    slow = Measured(small_seconds=1e-3, large_seconds=0.2)
    item = judged(machine(0), machine(1, slow))[3]
    assert item.status == "WARNING"
    assert "(0.08 GB/s), as machine 1 (pod-1) has it; slow for ranks that add up twice a layer" in item.detail


def test_the_cause_is_named_and_not_who_missed_it() -> None:
    lost = Measured(problem="RankLostError: another rank is lost")
    item = judged(machine(0, lost), machine(1, Measured(problem="RuntimeError: no interface")))[3]
    assert item.status == "FAILED"
    assert "on machine 1 (pod-1): RuntimeError: no interface; let them reach each other" in item.detail


def test_addresses_are_written_as_they_are_given() -> None:
    place = Place(address=Address("fd00::1", 29500), seconds=1.0)
    assert (str(place.address), place.address.test_command) == ("[fd00::1]:29500", "nc -vz fd00::1 29500")


def test_a_rank_that_only_waited_is_not_the_cause() -> None:
    own, late = "ValueError: no such device", "took more than 90 s"
    assert first_cause({0: Measured(problem=late), 1: Measured(problem=own)}) == (1, own)
    assert first_cause({0: Measured(), 1: Measured(problem=late)}) == (1, late)
