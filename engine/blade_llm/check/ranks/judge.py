"""``check_nodes``, ``check_versions``, ``check_clocks`` and ``check_allreduce``, by what machine 0 has learned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blade_llm.check.ranks.all_reduce import first_cause, summary
from blade_llm.check.ranks.meeting import Machine, Meeting
from blade_protocol.check import CheckItem, CheckStatus

CLOCK_SECONDS: Final = 1.0
"""A difference of clocks that is worth a warning."""
SLOW_BANDWIDTH: Final = 100e6
"""Bytes a second of an all-reduce between machines that are worth a warning: what a gigabit network has."""
NAMES: Final = ("check_nodes", "check_versions", "check_clocks", "check_allreduce")


def judge(meeting: Meeting) -> tuple[CheckItem, ...]:
    """The items about several machines, in their order."""
    together = judge_nodes(meeting)
    if together.status == "FAILED":
        return (together, *unchecked("the machines did not meet, see check_nodes"))
    return together, judge_versions(meeting), judge_clocks(meeting), judge_allreduce(meeting)


def unchecked(reason: str) -> tuple[CheckItem, ...]:
    """The items after the first, which were not checked."""
    return tuple(_item(name, "FAILED", f"not checked: {reason}") for name in NAMES[1:])


def judge_nodes(meeting: Meeting) -> CheckItem:
    """PASS when all machines came, each with a number of its own, and as many GPUs as the others."""
    machines, place, address = meeting.machines, meeting.place, meeting.place.address
    if meeting.problem:
        return _item(NAMES[0], "FAILED", meeting.problem)
    missing = [rank for rank in range(meeting.nnodes) if rank not in machines]
    if missing:
        numbers = ", ".join(map(str, missing))
        return _item(
            NAMES[0],
            "FAILED",
            f"machine{'s' if len(missing) > 1 else ''} {numbers} of {meeting.nnodes} did not come to {address} within "
            f"{place.seconds:.0f} s; look whether the check runs there, and test it there with: "
            f"{address.test_command}; came: {_listed(machines.values())}",
        )
    if odd := [each for each in machines.values() if each.hello.gpus != machines[0].hello.gpus]:
        return _item(
            NAMES[0],
            "FAILED",
            f"machine 0 ({machines[0].hello.host}) has {machines[0].hello.gpus} GPUs, "
            + ", ".join(f"machine {each} {each.hello.gpus}" for each in odd)
            + "; give all as many",
        )
    return _item(
        NAMES[0],
        "PASS",
        f"{meeting.nnodes} machines met at {address} after {meeting.seconds:.1f} s: {_listed(machines.values())}",
    )


def judge_versions(meeting: Meeting) -> CheckItem:
    """PASS when all run one version of ``blade_llm`` and of torch: with others they would not compute the same bits."""
    first = meeting.machines[0].hello
    other = [
        f"machine {each} has {name} {theirs}"
        for each in meeting.machines.values()
        for name, theirs, ours in (
            ("blade_llm", each.hello.blade_llm, first.blade_llm),
            ("torch", each.hello.torch, first.torch),
        )
        if theirs != ours
    ]
    versions = f"blade_llm {first.blade_llm}, torch {first.torch}"
    if not other:
        return _item(NAMES[1], "PASS", versions)
    return _item(
        NAMES[1],
        "FAILED",
        f"machine 0 ({first.host}) has {versions}, but {', '.join(other)}; start all from one image",
    )


def judge_clocks(meeting: Meeting) -> CheckItem:
    """PASS when all clocks are within a second of machine 0's."""
    farthest = max(meeting.machines.values(), key=lambda each: abs(each.clock))
    seconds = abs(farthest.clock)
    if seconds <= CLOCK_SECONDS:
        return _item(NAMES[2], "PASS", f"clocks differ by {seconds * 1e3:.0f} ms at most")
    ahead = "ahead of" if farthest.clock > 0 else "behind"
    return _item(
        NAMES[2],
        "WARNING",
        f"the clock of machine {farthest} is {seconds:.1f} s {ahead} that of machine 0 "
        f"({meeting.machines[0].hello.host}): their logs cannot be compared, tokens and certificates expire at other "
        "times, and buckets refuse requests that are 15 minutes off; let both follow one NTP server",
    )


def judge_allreduce(meeting: Meeting) -> CheckItem:
    """PASS when all have added up, and no slower than over a gigabit network."""
    measured = {rank: each.measured for rank, each in meeting.machines.items()}
    way = "NCCL" if meeting.machines[0].hello.gpus else "gloo over TCP"
    if cause := first_cause(measured):
        rank, problem = cause
        return _item(
            NAMES[3],
            "FAILED",
            f"{way} between the machines fails, on machine {meeting.machines[rank]}: {problem}; let them reach each "
            "other on all TCP ports, and name the network's interface by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
            "where a machine has several",
        )
    slowest = max(meeting.machines.values(), key=lambda each: each.measured.large_seconds)
    detail = f"{way} between {meeting.nnodes} machines: {summary(slowest.measured)}, as machine {slowest} has it"
    if slowest.measured.bandwidth >= SLOW_BANDWIDTH:
        return _item(NAMES[3], "PASS", detail)
    return _item(
        NAMES[3],
        "WARNING",
        f"{detail}; slow for ranks that add up twice a layer: let machines be pipeline stages "
        "(--pipeline_parallel_size), whose ranks only pass states on, or give them a faster network",
    )


def _listed(machines: Iterable[Machine]) -> str:
    return ", ".join(map(str, machines))


def _item(name: str, status: CheckStatus, detail: str) -> CheckItem:
    return CheckItem(name=name, status=status, detail=detail)
