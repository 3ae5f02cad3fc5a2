"""A front process beyond the first: ``python -m blade_llm.api.front``, started by :mod:`blade_llm.api.fronts`.

It serves the public port and nothing else. The first front keeps the internal port, the signals and the engine
process, and orders this one over its standard input, whose end of file means that the first front is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import sys
from typing import Any

import uvloop

from blade_llm.api.app import make_app
from blade_llm.api.board import Board
from blade_llm.api.context import ServerContext
from blade_llm.api.fronts import READY, FrontStart, Order, Serve, Stop, read_order
from blade_llm.api.http_server import HttpServer
from blade_llm.api.metrics import NUM_COUNTERS
from blade_llm.api.served_model import load_served_model
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.start import LOG_FORMAT, die_with_parent, ignore_signals, read_start, spare_the_collector


async def _run(start: FrontStart, control: int) -> int:
    board = Board(start.count, NUM_COUNTERS, start.board)
    vitals = board.vitals[start.number]
    with contextlib.closing(EngineClient(start.engine, front=start.number, vitals=vitals)) as client:
        model = load_served_model(start.model)
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control))
        ready = asyncio.ensure_future(client.ready())
        order = await _order(reader, ready)
        if order is None and ready.done():
            engine = ready.result()
            context = ServerContext(
                client,
                model,
                engine.max_model_len,
                board,
                front=start.number,
                live_timeout=start.live_timeout,
                hidden_size=engine.hidden_size,
            )
            writer.write(READY)
            order = await _order(reader)
            if isinstance(order, Serve):
                order = await _serve(context, socket.socket(fileno=start.public), start.log_level, reader)
    return 0 if isinstance(order, Stop) else 1


async def _serve(
    context: ServerContext, public: socket.socket, log_level: str, reader: asyncio.StreamReader
) -> Order | None:
    """Serve until an order comes, and carry it out."""
    server = HttpServer(make_app(context), log_level)
    task = await server.begin(public)
    spare_the_collector()
    order = await _order(reader, task)
    if isinstance(order, Stop) and order.error is not None:
        context.client.fail(EngineDeadError(order.error))
    context.client.stop_open()
    server.should_exit = True
    await task
    await context.close()
    return order


async def _order(reader: asyncio.StreamReader, *others: asyncio.Future[Any]) -> Order | None:
    """The next order. None: the first front is gone, or one of ``others`` was done first."""
    order = asyncio.ensure_future(read_order(reader))
    await asyncio.wait([order, *others], return_when=asyncio.FIRST_COMPLETED)
    if order.done():
        return order.result()
    order.cancel()
    return None


def main() -> int:
    """Entry point of the process."""
    ignore_signals()
    faulthandler.enable()
    die_with_parent(os.getppid())
    control = sys.stdin.fileno()
    start = read_start(control, FrontStart)
    if start is None:
        return 1
    logging.basicConfig(level=start.log_level, format=LOG_FORMAT)
    return uvloop.run(_run(start, control))


if __name__ == "__main__":
    sys.exit(main())
