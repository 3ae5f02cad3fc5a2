"""Machines of a check that meet: all come, some do not, two have one number, strangers connect. All on this host."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from blade_llm.check.ranks import meeting
from blade_llm.check.ranks.all_reduce import Measured
from blade_llm.check.ranks.judge import NAMES, judge
from blade_llm.check.ranks.meeting import Leader, MeetingError, Place, join
from blade_llm.check.ranks.messages import FROM_LEADER, Hello, Measure, Ping, Pong, Result, Verdict, receive, send
from blade_llm.engine.nodes.address import Address
from blade_protocol.check import CheckItem

MEASURED = Measured(small_seconds=50e-6, large_seconds=0.016)
Items = tuple[CheckItem, ...]


def hello(rank: int, nnodes: int = 2, instance: str = "") -> Hello:
    return Hello(
        node_rank=rank,
        nnodes=nnodes,
        host=f"host-{rank}",
        instance=instance or f"instance-{rank}",
        blade_llm="1",
        torch="2",
        gpus=0,
    )


@pytest.fixture
def place() -> Place:
    with socket.create_server(("", 0)) as probe:
        return Place(address=Address("127.0.0.1", probe.getsockname()[1]), seconds=30.0)


async def measured(address: str) -> Measured:
    assert address == "tcp://127.0.0.1:1"
    return MEASURED


def lead(place: Place, nnodes: int = 2) -> asyncio.Task[Items]:
    leader = Leader(place, hello(0, nnodes), measured, lambda host: f"tcp://{host}:1")
    return asyncio.create_task(leader.meet(judge))


async def connect(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(place.address.host, place.address.port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


def shorter(place: Place, seconds: float) -> Place:
    return replace(place, seconds=seconds)


async def test_all_meet_whoever_is_first_and_have_the_same_items(place: Place) -> None:
    members = [asyncio.create_task(join(place, hello(rank, 3), measured)) for rank in (2, 1)]
    await asyncio.sleep(0.1)
    items, *others = await asyncio.gather(lead(place, 3), *members)
    assert others == [items, items]
    assert [item.name for item in items] == list(NAMES)
    assert {item.status for item in items} == {"PASS"}
    assert items[0].detail.startswith(f"3 machines met at 127.0.0.1:{place.address.port} after ")
    assert items[0].detail.endswith(": 0 (host-0), 1 (host-1), 2 (host-2)")


async def test_one_that_never_comes_is_named_with_the_command_to_test_it(place: Place) -> None:
    member = asyncio.create_task(join(place, hello(1, 4), measured))
    items = await lead(shorter(place, 1.0), 4)
    assert await member == items
    assert [item.status for item in items] == ["FAILED"] * 4
    assert items[0].detail == (
        f"machines 2, 3 of 4 did not come to 127.0.0.1:{place.address.port} within 1 s; look whether the check runs "
        f"there, and test it there with: nc -vz 127.0.0.1 {place.address.port}; came: 0 (host-0), 1 (host-1)"
    )


async def test_a_machine_0_that_nobody_started_is_a_failure_in_time(place: Place) -> None:
    with pytest.raises(MeetingError) as failure:
        await join(shorter(place, 0.2), hello(1), measured)
    text = str(failure.value)
    assert text.startswith(f"machine 1 (host-1) did not meet machine 0 at 127.0.0.1:{place.address.port} within 0 s: ")
    assert text.endswith(f"; test it here with: nc -vz 127.0.0.1 {place.address.port}")
    assert "refused" in text.lower()


async def test_what_answers_otherwise_is_no_machine_0(place: Place) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await asyncio.start_server(answer, place.address.host, place.address.port):
        with pytest.raises(MeetingError, match="what answers there is no blade_llm_check"):
            await join(shorter(place, 0.2), hello(1), measured)


async def test_a_port_that_is_taken_is_named(place: Place) -> None:
    with socket.create_server(("", place.address.port)):
        with pytest.raises(
            MeetingError, match=f"cannot listen on port {place.address.port}.*another port in --dist_init_addr"
        ):
            await lead(place)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (hello(1, 3, "another"), "two machines have --node_rank 1: host-1 and host-1; give each its own"),
        (hello(0, 3, "another"), "two machines have --node_rank 0: host-0 and host-0; give each its own"),
        (hello(3, 3), "host-3 has --node_rank 3; with --nnodes 3 give 0 to 2"),
        (hello(2, 2), "machine 2 (host-2) has --nnodes 2, machine 0 (host-0) 3; give all the same"),
    ],
)
async def test_machines_that_do_not_belong_together_are_told_at_once(place: Place, other: Hello, problem: str) -> None:
    leading = lead(place, 3)
    (await connect(place))[1].close()  # it listens
    first = asyncio.create_task(join(place, hello(1, 3), measured))
    await asyncio.sleep(0.2)
    with pytest.raises(MeetingError) as refused:
        await join(place, other, measured)
    assert str(refused.value) == problem
    items = await leading
    assert (items[0].status, items[0].detail) == ("FAILED", problem)
    assert await first == items


async def test_a_machine_that_was_started_again_takes_its_own_place(place: Place) -> None:
    leading = lead(place, 3)
    _, writer = await connect(place)
    await send(writer, hello(1, 3, "before"), 5)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    again = asyncio.create_task(join(place, hello(1, 3, "after"), measured))
    items, *_ = await asyncio.gather(leading, again, join(place, hello(2, 3), measured))
    assert items[0].status == "PASS"


def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pass


def writes(data: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    return lambda reader, writer: writer.write(data)


@pytest.mark.parametrize(
    "stranger",
    [
        silent,
        writes(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        writes(b"\x00\xff" * 1000 + b"\n"),
        writes(b"x" * (1 << 20)),
        writes(b'{"type":"hello"}\n'),
        writes(b'{"type":"verdict","items":[]}\n'),
        writes(b"[" * 30_000 + b"\n"),
    ],
)
async def test_strangers_do_not_matter(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    stranger: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
) -> None:
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 0.5)
    leading = lead(place)
    connections = [await connect(place) for _ in range(meeting.MAX_STRANGERS + 10)]
    for reader, writer in connections:
        stranger(reader, writer)
    items, others = await asyncio.gather(leading, join(place, hello(1), measured))
    assert items == others
    assert items[0].status == "PASS"
    for _, writer in connections:
        writer.close()


async def by_hand(place: Place, *, ahead: float = 0.0, leaves: bool = False) -> Items:
    """A machine whose clock is ``ahead``, or that leaves when it shall measure."""
    reader, writer = await connect(place)
    await send(writer, hello(1), 5)
    while True:
        message = await receive(reader, FROM_LEADER, 20)
        if isinstance(message, Ping):
            await send(writer, Pong(time=time.time() + ahead), 5)
        elif isinstance(message, Measure):
            if leaves:
                writer.close()
                return ()
            await send(writer, Result(measured=MEASURED), 5)
        else:
            assert isinstance(message, Verdict)
            writer.close()
            return message.items


@pytest.mark.parametrize(("ahead", "word"), [(100.0, "ahead of"), (-100.0, "behind")])
async def test_a_clock_that_is_off_warns(place: Place, ahead: float, word: str) -> None:
    items, _ = await asyncio.gather(lead(place), by_hand(place, ahead=ahead))
    assert [item.status for item in items] == ["PASS", "PASS", "WARNING", "PASS"]
    assert f"the clock of machine 1 (host-1) is 100.0 s {word} that of machine 0 (host-0)" in items[2].detail


async def test_one_that_leaves_during_the_check_is_named(place: Place) -> None:
    items, _ = await asyncio.gather(lead(place), by_hand(place, leaves=True))
    assert [item.status for item in items] == ["PASS", "PASS", "PASS", "FAILED"]
    assert "on machine 1 (host-1): left during the check" in items[3].detail


async def test_a_name_that_is_not_machine_0_fails(place: Place) -> None:
    elsewhere = Place(address=Address("no-such-host.invalid", place.address.port), seconds=1.0)
    member = asyncio.create_task(join(place, hello(1), measured))
    items = await lead(elsewhere)
    assert items[0].status == "FAILED"
    assert f"machine 0 (host-0) does not reach itself at no-such-host.invalid:{place.address.port}" in items[0].detail
    assert await member == items
