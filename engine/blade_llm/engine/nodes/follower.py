"""A follower's side of the link: finds the leader, whoever of the two started first, and notices when it is lost."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Final

import msgspec

from blade_llm.engine.nodes.address import Address
from blade_llm.engine.nodes.connection import Connection, GoneError, Pace, Ticker
from blade_llm.engine.nodes.messages import (
    NONCE_BYTES,
    PROTOCOL,
    Beat,
    Challenge,
    Ending,
    Join,
    RankLost,
    Refused,
    Welcome,
    proof_of,
    proven,
)

logger = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 5.0


class LinkError(Exception):
    """This machine does not belong to the engine, or the leader is not there; the message says what to change."""


class LeaderLink:
    """The link to the leader at ``address``. Used by one event loop."""

    def __init__(self, address: Address, token: bytes = b"", pace: Pace | None = None) -> None:
        self._address, self._token = address, token
        self._pace = pace or Pace()
        self._connection: Connection | None = None
        self._beating: asyncio.Task[None] | None = None
        self.serving = False
        """All ranks of the engine are ready."""

    async def join(self, join: Join, timeout: float) -> Welcome:
        """Wait until the leader is there and starts the machines; to be called once.

        ``join`` is without nonce and proof. Raises :class:`LinkError`: it is not there after ``timeout`` seconds, or
        refuses this machine.
        """
        deadline = time.monotonic() + timeout
        why, reached = "", False
        while True:
            try:
                return await self._try(join, deadline)
            except (OSError, TimeoutError) as error:
                why, reached = str(error) or "no answer", False
            except GoneError as error:
                why, reached = str(error), True
            if time.monotonic() >= deadline:
                raise LinkError(self._nobody(why, reached, timeout))
            await asyncio.sleep(_RETRY_SECONDS)

    async def wait(self) -> str:
        """Return how the leader ended, or that it is lost."""
        assert self._connection is not None
        heard = asyncio.ensure_future(self._hear(self._connection))
        silent = asyncio.ensure_future(self._silence(self._connection))
        try:
            done, _ = await asyncio.wait((heard, silent), return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            heard.cancel()
            silent.cancel()

    def report(self, lost: RankLost) -> None:
        """A rank of this machine has exited, or hangs."""
        if self._connection is not None:
            self._connection.send(lost)

    async def close(self, message: str = "") -> None:
        """Leave, and say why."""
        if self._beating is not None:
            self._beating.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            if message:
                connection.send(Ending(message=message))
            await connection.close()

    async def _try(self, join: Join, deadline: float) -> Welcome:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        connection = self._connection = Connection(reader, writer)
        try:
            return await self._ask(connection, join, deadline)
        except BaseException:
            await self.close()
            raise

    async def _ask(self, connection: Connection, join: Join, deadline: float) -> Welcome:
        async with asyncio.timeout(self._pace.join):
            challenge = await connection.receive()
        if not isinstance(challenge, Challenge):
            raise GoneError("it does not begin as a leader does")
        if challenge.protocol != PROTOCOL:
            raise LinkError(f"machine 0 at {self._address} runs another version: install one version on all machines")
        join = msgspec.structs.replace(join, nonce=os.urandom(NONCE_BYTES))
        connection.send(msgspec.structs.replace(join, proof=proof_of(join, challenge.nonce, self._token)))
        self._beating = asyncio.ensure_future(self._beat(connection))
        silence = asyncio.ensure_future(self._silence(connection))
        try:
            while True:
                receiving = asyncio.ensure_future(connection.receive())
                left = max(0.0, deadline - time.monotonic())
                await asyncio.wait((receiving, silence), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    receiving.cancel()
                    raise GoneError("the leader waits for other machines" if not silence.done() else silence.result())
                message = receiving.result()
                if isinstance(message, Welcome):
                    if not proven(message, join.nonce, self._token):
                        raise LinkError(
                            f"whoever listens at {self._address} does not have the secret of BLADE_INTERNAL_TOKEN_FILE"
                        )
                    return message
                if isinstance(message, Refused):
                    if message.again:
                        raise GoneError(message.message)
                    raise LinkError(f"machine 0 at {self._address} refuses this one: {message.message}")
                if isinstance(message, Ending):
                    raise GoneError(message.message)
        finally:
            silence.cancel()

    async def _hear(self, connection: Connection) -> str:
        try:
            while True:
                message = await connection.receive()
                if isinstance(message, Beat):
                    self.serving = self.serving or message.serving
                elif isinstance(message, Ending):
                    return f"machine 0 at {self._address}, the leader, ended: {message.message}"
        except GoneError:
            return f"machine 0 at {self._address}, the leader, is gone: it closed the connection"

    async def _beat(self, connection: Connection) -> None:
        while True:
            connection.send(Beat())
            await asyncio.sleep(self._pace.beat)

    async def _silence(self, connection: Connection) -> str:
        """Return when the leader was silent for too long."""
        ticker = Ticker(self._pace.beat)
        while True:
            late = await ticker.tick()
            connection.heard += late
            limit = self._pace.silence if self.serving else self._pace.loading_silence
            if time.monotonic() - connection.heard > limit:
                return (
                    f"machine 0 at {self._address}, the leader, was not heard of for {limit:g} s: it hangs, or the "
                    "network to it is cut"
                )

    def _nobody(self, why: str, reached: bool, timeout: float) -> str:
        if reached:
            return f"machine 0 at {self._address} did not start this machine within {timeout:g} s: {why}"
        return (
            f"nobody answers at --dist_init_addr {self._address} after {timeout:g} s ({why}); start machine 0 with "
            f"--node_rank 0 there, and test from here whether it is reached: {self._address.test_command}"
        )
