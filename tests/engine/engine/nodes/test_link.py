"""The link between machines: who is let in, who is not, and who is lost. Real sockets, both sides in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.nodes.address import Address
from blade_llm.engine.nodes.connection import Connection, Pace
from blade_llm.engine.nodes.follower import LeaderLink, LinkError
from blade_llm.engine.nodes.identity import Identity, identity_of
from blade_llm.engine.nodes.leader import Leader
from blade_llm.engine.nodes.messages import PROTOCOL, Beat, Challenge, Join, RankLost, Welcome, proof_of
from blade_llm.models.errors import UnsupportedSettingError
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.route import free_port

PACE = Pace(beat=0.05, silence=1.0, loading_silence=5.0, join=0.5)
IDENTITY = Identity(version="1.2", torch="2.9", model="abc", weights={"model.safetensors": 10})
JOIN = Join(node_rank=1, nnodes=2, num_ranks=4, identity=IDENTITY, nonce=b"")
WELCOME = Welcome(
    config=EngineConfig(model="m", served_names=("m",), max_num_seqs=7),
    plans_port=1,
    group_port=2,
    session_key="key",
    device_type="cpu",
)


class Machines:
    """A leader for two ranks on each machine, and what it says of those that are lost."""

    def __init__(self, nodes: int = 2, token: bytes = b"") -> None:
        self.address = Address("127.0.0.1", free_port())
        self.lost: asyncio.Queue[tuple[int, EngineFailure, bool]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.leader = Leader(self.address, RankLayout(2 * nodes, 1, nodes), IDENTITY, token, PACE)
        self.leader.watch(lambda *lost: loop.call_soon_threadsafe(self.lost.put_nowait, lost) and None)

    async def admit(self, timeout: float = 30.0) -> None:
        await asyncio.to_thread(self.leader.admit, WELCOME, timeout, lambda: None)

    def link(self, token: bytes = b"") -> LeaderLink:
        return LeaderLink(self.address, token, PACE)

    async def join(self, join: Join = JOIN, token: bytes = b"", timeout: float = 30.0) -> Welcome:
        return await self.link(token).join(join, timeout)


@contextlib.asynccontextmanager
async def machines(*args: Any) -> AsyncIterator[Machines]:
    made = Machines(*args)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.leader.close)


@pytest.fixture
def taken() -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield Address("127.0.0.1", sock.getsockname()[1])


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_a_machine_gets_the_leaders_settings_and_both_hear_of_the_end() -> None:
    async def test() -> None:
        async with machines() as two:
            link = two.link()
            _, welcome = await asyncio.gather(two.admit(), link.join(JOIN, 30))
            assert welcome.config == WELCOME.config
            assert welcome.session_key == "key"
            assert [two.leader.place_of(rank) for rank in range(4)] == ["", "", *["machine 1 at 127.0.0.1"] * 2]
            ended = asyncio.ensure_future(link.wait())
            assert not link.serving
            two.leader.serving()
            while not link.serving:  # noqa: ASYNC110 - set by what comes over the link
                await asyncio.sleep(0.01)
            two.leader.end("rank 0: out of memory")
            assert await ended == f"machine 0 at {two.address}, the leader, ended: rank 0: out of memory"
            await link.close("it follows")
            rank, failure, consequence = await two.lost.get()
            assert (rank, consequence) == (2, False)
            assert failure.message == "machine 1 at 127.0.0.1 (ranks 2 to 3) ends: it follows"
            assert two.leader.place_of(2) == "machine 1"

    run(test())


def test_the_follower_may_be_first() -> None:
    async def test() -> None:
        address = Address("127.0.0.1", free_port())
        link = LeaderLink(address, b"", PACE)
        joining = asyncio.ensure_future(link.join(JOIN, 30))
        await asyncio.sleep(0.7)  # it has been refused a connection once
        leader = Leader(address, RankLayout(4, 1, 2), IDENTITY, b"", PACE)
        await asyncio.to_thread(leader.admit, WELCOME, 30, lambda: None)
        assert (await joining).config == WELCOME.config
        await asyncio.to_thread(leader.close)
        assert "the leader, ended: its engine was stopped" in await link.wait()
        await link.close()

    run(test())


def test_machines_start_together() -> None:
    async def test() -> None:
        async with machines(3) as three:
            admitted = asyncio.ensure_future(three.admit())
            joins = [msgspec.structs.replace(JOIN, nnodes=3, num_ranks=6, node_rank=node) for node in (1, 2)]
            first = asyncio.ensure_future(three.join(joins[0]))
            await asyncio.sleep(0.3)
            assert not first.done()
            await asyncio.gather(three.join(joins[1]), first, admitted)

    run(test())


def other(**changes: Any) -> Join:
    return msgspec.structs.replace(JOIN, identity=msgspec.structs.replace(IDENTITY, **changes))


@pytest.mark.parametrize(
    ("join", "says"),
    [
        (msgspec.structs.replace(JOIN, node_rank=2), "machine 2 .* does not exist: --node_rank is 0 to 1"),
        (msgspec.structs.replace(JOIN, node_rank=0), "machine 0 .* does not exist"),
        (msgspec.structs.replace(JOIN, nnodes=3), "machine 1 .* with --nnodes 3, machine 0 with --nnodes 2"),
        (msgspec.structs.replace(JOIN, num_ranks=2), "machine 1 .* was started for 2 ranks, machine 0 for 4"),
        (other(version="1.3"), "machine 1 .* runs version 1.3 and machine 0 version 1.2: install one version"),
        (other(torch="2.8"), "machine 1 .* has torch 2.8 and machine 0 torch 2.9"),
        (other(model="abd"), "machine 1 .* has another model than machine 0"),
        (other(weights={"model.safetensors": 11}), "has another model.safetensors than machine 0 .11 bytes, there 10"),
    ],
)
def test_what_does_not_belong_is_refused_on_both_sides(join: Join, says: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with machines() as two:
            with pytest.raises(LinkError, match=says):
                await two.join(join)
            (refusal,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            with pytest.raises(UnsupportedSettingError, match=r"machine 1 did not join within 0\.1 s") as error:
                await two.admit(0.1)
            assert (refusal in str(error.value)) == (join.node_rank == 1)
            await asyncio.gather(two.admit(), two.join())  # it does no harm

    run(test())


def test_two_machines_with_one_number() -> None:
    async def test() -> None:
        async with machines(3) as three:
            join = msgspec.structs.replace(JOIN, nnodes=3, num_ranks=6)
            first = asyncio.ensure_future(three.join(join))
            await asyncio.sleep(0.3)
            with pytest.raises(
                LinkError, match=r"machine 1 .* is there twice: 127.0.0.1 has joined with --node_rank 1"
            ):
                await three.join(join)
            assert not first.done()
            first.cancel()

    run(test())


def test_a_machine_that_died_before_the_start_may_come_again() -> None:
    async def test() -> None:
        async with machines(3) as three:
            join = msgspec.structs.replace(JOIN, nnodes=3, num_ranks=6)
            first = asyncio.ensure_future(three.join(join))
            await asyncio.sleep(0.3)
            first.cancel()
            await asyncio.gather(
                three.join(join), three.join(msgspec.structs.replace(join, node_rank=2)), three.admit()
            )

    run(test())


def test_who_has_another_secret_is_refused() -> None:
    async def test() -> None:
        async with machines(2, b"secret") as two:
            for token in (b"", b"other"):
                with pytest.raises(LinkError, match="has another secret than machine 0: let BLADE_INTERNAL_TOKEN_FILE"):
                    await two.join(token=token)
            await asyncio.gather(two.admit(), two.join(token=b"secret"))

    run(test())


def test_a_leader_without_the_secret_is_refused() -> None:
    """What it would send are settings and steps."""

    async def leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        connection.send(Challenge(protocol=PROTOCOL, nonce=b"n"))
        join = await connection.receive()
        assert isinstance(join, Join)
        connection.send(msgspec.structs.replace(WELCOME, proof=proof_of(WELCOME, join.nonce, b"other")))

    async def test() -> None:
        server = await asyncio.start_server(leader, "127.0.0.1", 0)
        link = LeaderLink(Address("127.0.0.1", server.sockets[0].getsockname()[1]), b"secret", PACE)
        with pytest.raises(LinkError, match="does not have the secret of BLADE_INTERNAL_TOKEN_FILE"):
            await link.join(JOIN, 30)
        server.close()

    run(test())


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x04abcd",
        b"\xff\xff\xff\xff" + b"x" * 100_000,
        b"\x00\x00\x00\x00",
    ],
    ids=["nothing", "http", "no message", "endless", "empty"],
)
def test_a_stranger_harms_nobody(garbage: bytes) -> None:
    async def test() -> None:
        async with machines() as two:
            reader, writer = await asyncio.open_connection(*two.address)
            writer.write(garbage)
            await asyncio.gather(two.admit(), two.join())
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass  # until it is hung up on
            writer.close()
            assert two.lost.empty()

    run(test())


def test_many_strangers_hold_connections_for_a_while() -> None:
    async def test() -> None:
        async with machines() as two:
            strangers = [await asyncio.open_connection(*two.address) for _ in range(100)]
            await asyncio.gather(two.admit(), two.join())
            for reader, writer in strangers:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()

    run(test())


async def silent_machine(two: Machines) -> Connection:
    """Joins and says nothing more."""
    connection = Connection(*await asyncio.open_connection(*two.address))
    challenge = await connection.receive()
    assert isinstance(challenge, Challenge)
    connection.send(msgspec.structs.replace(JOIN, proof=proof_of(JOIN, challenge.nonce, b"")))
    await two.admit()
    return connection


def test_a_machine_that_hangs_is_lost() -> None:
    async def test() -> None:
        async with machines() as two:
            connection = await silent_machine(two)
            two.leader.serving()
            rank, failure, consequence = await two.lost.get()
            assert (rank, consequence) == (2, False)
            assert failure.message == (
                "machine 1 at 127.0.0.1 (ranks 2 to 3) was not heard of for 1 s: it hangs, or the network to it is cut"
            )
            await connection.close()

    run(test())


def test_a_machine_that_dies_is_lost_at_once() -> None:
    async def test() -> None:
        async with machines() as two:
            connection = await silent_machine(two)
            await connection.close()
            _, failure, _ = await two.lost.get()
            assert "machine 1 at 127.0.0.1 (ranks 2 to 3) is gone: it closed the connection" in failure.message

    run(test())


def test_a_leader_that_hangs_is_lost() -> None:
    async def leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        connection.send(Challenge(protocol=PROTOCOL, nonce=b"n"))
        join = await connection.receive()
        assert isinstance(join, Join)
        connection.send(msgspec.structs.replace(WELCOME, proof=proof_of(WELCOME, join.nonce, b"")))
        connection.send(Beat(serving=True))
        with contextlib.suppress(Exception):
            while True:
                await connection.receive()

    async def test() -> None:
        server = await asyncio.start_server(leader, "127.0.0.1", 0)
        link = LeaderLink(Address("127.0.0.1", server.sockets[0].getsockname()[1]), b"", PACE)
        await link.join(JOIN, 30)
        assert "the leader, was not heard of for 1 s: it hangs, or the network to it is cut" in await link.wait()
        await link.close()
        server.close()

    run(test())


def test_both_live_on_while_both_are_heard() -> None:
    async def test() -> None:
        async with machines() as two:
            link = two.link()
            await asyncio.gather(two.admit(), link.join(JOIN, 30))
            two.leader.serving()
            waiting = asyncio.ensure_future(link.wait())
            await asyncio.sleep(3 * PACE.silence)
            assert not waiting.done()
            assert two.lost.empty()
            waiting.cancel()
            await link.close()

    run(test())


def test_a_lost_rank_is_named_with_its_machine() -> None:
    async def test() -> None:
        async with machines() as two:
            link = two.link()
            await asyncio.gather(two.admit(), link.join(JOIN, 30))
            link.report(RankLost(rank=0, failure=EngineFailure(message="not its own"), consequence=False))
            link.report(RankLost(rank=3, failure=EngineFailure(message="rank 3: no memory"), consequence=True))
            rank, failure, consequence = await two.lost.get()
            assert (rank, failure.message, consequence) == (3, "machine 1 at 127.0.0.1: rank 3: no memory", True)
            await link.close()

    run(test())


def test_nobody_answers() -> None:
    async def test() -> None:
        link = LeaderLink(Address("127.0.0.1", free_port()), b"", PACE)
        with pytest.raises(LinkError, match=r"nobody answers at --dist_init_addr .* after 0 s .* nc -vz 127.0.0.1 \d+"):
            await link.join(JOIN, 0)
        async with machines() as two:
            with pytest.raises(UnsupportedSettingError, match=r"machine 1 did not join within 0 s; .* --node_rank 1,"):
                await two.admit(0)

    run(test())


def test_somebody_else_answers(taken: Address) -> None:
    async def test() -> None:
        with pytest.raises(LinkError, match=r"did not start this machine|nobody answers"):
            await LeaderLink(taken, b"", PACE).join(JOIN, 1)

    run(test())


def test_a_port_that_is_taken(taken: Address) -> None:
    with pytest.raises(UnsupportedSettingError, match=f"--dist_init_addr {taken}: the port is in use; give all"):
        Leader(taken, RankLayout(4, 1, 2), IDENTITY)
    with pytest.raises(UnsupportedSettingError, match=r"--dist_init_addr nowhere.invalid:1: nowhere.invalid: "):
        Leader(Address("nowhere.invalid", 1), RankLayout(4, 1, 2), IDENTITY)


def test_the_identity_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    (tmp_path / "tokenizer.json").write_text("{}")
    found = identity_of(tmp_path)
    assert found.weights == {"model.safetensors": 4}
    assert found.difference(found) is None
    os.truncate(tmp_path / "model.safetensors", 3)
    assert "has another model.safetensors" in (identity_of(tmp_path).difference(found) or "")
    os.remove(tmp_path / "model.safetensors")
    assert identity_of(tmp_path).difference(found) is None, "a machine may have its own part alone"
    (tmp_path / "config.json").write_text("{ }")
    assert "another model" in (identity_of(tmp_path).difference(found) or "")
