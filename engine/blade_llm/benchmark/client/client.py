"""Sends requests, keeps connections, and turns whatever happens into a measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from blade_llm.benchmark.client.connection import Connection, ConnectionBroken, Reply
from blade_llm.benchmark.client.measurement import Failure, Measurement
from blade_llm.benchmark.client.response import ResponseReader
from blade_llm.benchmark.client.target import Address, Target
from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.workload.datasets import Sample

Clock = Callable[[], float]


class Client:
    """A pool of connections to one address. ``timeout``: seconds a whole exchange may take."""

    def __init__(self, address: Address, *, timeout: float = 600.0, clock: Clock = time.perf_counter) -> None:
        self._address = address
        self._timeout = timeout
        self.clock = clock
        self._idle: list[Connection] = []

    async def measure(self, target: Target, sample: Sample, due: float) -> Measurement:
        """Send ``sample`` and follow its response to the end. Failures are in the measurement, never raised."""
        request = target.request(sample)
        reader = ResponseReader()
        failure: Failure | None
        sent = self.clock()
        try:
            await self._exchange(request, reader)
            failure = reader.failure()
        except TimeoutError:
            failure = Failure(kind="timeout", detail=f"no end within {self._timeout:g} s")
        except ConnectionBroken as error:
            kind = "stream cut" if reader.events else "connection broken"
            failure = Failure(kind=kind, detail=f"{error}, after {len(reader.events)} events")
        except OSError as error:
            failure = Failure(kind="cannot connect", detail=str(error))
        ended = self.clock()
        counted = reader.prompt_tokens is not None and reader.completion_tokens is not None
        return Measurement(
            due=due,
            sent=sent,
            ended=ended,
            events=reader.events,
            input_tokens=sample.input_tokens if reader.prompt_tokens is None else reader.prompt_tokens,
            output_tokens=len(reader.events) if reader.completion_tokens is None else reader.completion_tokens,
            counted_by_server=counted,
            failure=failure,
        )

    async def served_model(self, target: Target) -> str:
        """The first model the server names. Raises :class:`BenchmarkError`."""
        reply = _Body()
        try:
            await self._exchange(target.models_request(), reply)
            if reply.status == 200:
                return str(msgspec.json.decode(reply.body)["data"][0]["id"])
            problem = f"answered {reply.status}"
        except TimeoutError:
            problem = f"gave no answer within {self._timeout:g} s"
        except (OSError, ConnectionBroken) as error:
            problem = f"cannot be reached: {error}"
        except (msgspec.DecodeError, KeyError, IndexError, TypeError):
            problem = "did not answer with a list of models"
        raise BenchmarkError(
            f"{self._address.url}/models {problem}; give --base_url, or --model NAME if it has no list"
        )

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, request: bytes, reply: Reply) -> None:
        async with asyncio.timeout(self._timeout):
            while True:
                connection = await self._connection()
                reused = connection.reused
                try:
                    await connection.exchange(request, reply)
                except ConnectionBroken as error:
                    # The server closed a connection it had kept idle, just as we took it.
                    if reused and error.untouched:
                        continue
                    raise
                if connection.usable:
                    self._idle.append(connection)
                return

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self.clock), self._address.host, self._address.port, ssl=self._address.tls
        )
        return connection


class _Body:
    """A response read whole."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""

    def begin(self, status: int, content_type: str) -> None:
        self.status = status

    def feed(self, data: bytes, now: float) -> None:
        self.body += data
