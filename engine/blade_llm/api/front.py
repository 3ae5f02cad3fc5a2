"""A front process beyond the first: ``python -m blade_llm.api.front``, started by :mod:`blade_llm.api.fronts`.

It serves the public port and nothing else. The first front keeps the internal port, the signals and the engine
process, and orders this one over its standard input, whose end of file means that the first front is gone.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys

import uvloop

from blade_llm.api.app import make_app
from blade_llm.api.board import Board
from blade_llm.api.context import ServerContext
from blade_llm.api.fronts import READY, FrontStart, Serve, Stop, read_order
from blade_llm.api.http_server import HttpServer
from blade_llm.api.metrics import NUM_COUNTERS
from blade_llm.api.served_model import load_served_model
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.start import LOG_FORMAT, die_with_parent, read_start, spare_the_collector


async def _serve(start: FrontStart, control: int) -> int:
    board = Board(start.count, NUM_COUNTERS, start.board)
    client = EngineClient(start.engine, front=start.number, vitals=board.vitals[start.number])
    model = load_served_model(start.model)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control))
    orders = asyncio.ensure_future(read_order(reader))
    loaded = asyncio.ensure_future(client.ready())
    await asyncio.wait([loaded, orders], return_when=asyncio.FIRST_COMPLETED)
    if orders.done():
        return 1  # the start failed elsewhere
    context = ServerContext(
        client, model, loaded.result().max_model_len, board, front=start.number, live_timeout=start.live_timeout
    )
    writer.write(READY)
    order = await orders
    if order == Serve():
        server = HttpServer(make_app(context), start.log_level)
        task = await server.begin(socket.socket(fileno=start.public))
        spare_the_collector()
        orders = asyncio.ensure_future(read_order(reader))
        await asyncio.wait([task, orders], return_when=asyncio.FIRST_COMPLETED)
        if not orders.done():
            return 1
        order = orders.result()
        _end_open(context, order)
        server.should_exit = True
        await task
    client.close()
    return 0 if isinstance(order, Stop) else 1


def _end_open(context: ServerContext, order: object) -> None:
    if isinstance(order, Stop) and order.error is not None:
        context.client.fail(EngineDeadError(order.error))
    context.client.stop_open()


def main() -> int:
    """Entry point of the process."""
    # Ctrl-C and a group-wide SIGTERM reach us too, but the first front drains first and then tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    die_with_parent(os.getppid())
    control = sys.stdin.fileno()
    start = read_start(control, FrontStart)
    if start is None:
        return 1
    logging.basicConfig(level=start.log_level, format=LOG_FORMAT)
    return uvloop.run(_serve(start, control))


if __name__ == "__main__":
    sys.exit(main())
