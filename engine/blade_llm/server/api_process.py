"""An API-server process beyond the first: ``python -m blade_llm.server.api_process``.

It serves the public port and nothing else. The supervisor (:mod:`blade_llm.server.supervisor`) starts it, keeps the
internal port, the signals and the engine process, and commands this one over its standard input, whose end of file
means that the supervisor has exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
from typing import Any

import uvloop

from blade_llm.api.common.comments import StreamComments
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.response_store import ResponseStore
from blade_llm.api.common.served_model import load_served_model
from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.images.reader import open_reader
from blade_llm.api.metrics.requests import NUM_COUNTERS
from blade_llm.api.telemetry.payload_log import PayloadLog
from blade_llm.api.telemetry.tracing import open_tracer
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.heartbeat import open_heartbeat
from blade_llm.engine.start import die_with_parent, freeze_gc_heap, ignore_signals, log_to_stderr, read_start
from blade_llm.server.app import make_app
from blade_llm.server.http.server import HttpServer
from blade_llm.server.process_manager import READY, ApiServerStart, Command, Serve, Stop, read_command


async def _run(start: ApiServerStart, control: int) -> int:
    stats = SharedStats(start.count, NUM_COUNTERS, start.shared_stats, open_heartbeat(start.heartbeat))
    heartbeat = stats.heartbeats[start.index]
    with contextlib.closing(EngineClient(start.engine, client_index=start.index, heartbeat=heartbeat)) as client:
        model = load_served_model(start.model)
        images = open_reader(start.images, model.tokenizer)
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control))
        ready = asyncio.ensure_future(client.ready())
        command = await _next_command(reader, ready)
        if command is None and ready.done():
            engine = ready.result()
            context = ServerContext(
                client,
                model,
                engine.max_model_len,
                stats,
                process_index=start.index,
                live_timeout=start.live_timeout,
                hidden_size=engine.hidden_size,
                max_body_bytes=start.limits.max_body_bytes,
                strict_fields=start.strict_fields,
                metric_aliases=start.metric_aliases,
                comments=StreamComments(start.limits.comment_seconds),
                responses=ResponseStore(start.responses, index=start.index, count=start.count),
                tracer=open_tracer(),
                payloads=None if start.payloads is None else PayloadLog(start.payloads, start.index),
                images=images,
            )
            writer.write(READY)
            command = await _next_command(reader)
            if isinstance(command, Serve):
                command = await _serve(context, start, reader)
    return 0 if isinstance(command, Stop) else 1


async def _serve(context: ServerContext, start: ApiServerStart, reader: asyncio.StreamReader) -> Command | None:
    """Serve until a command comes, and carry it out."""
    server = HttpServer(make_app(context, start.rules), start.limits, start.log_level)
    task = await server.begin(socket.socket(fileno=start.public))
    freeze_gc_heap()
    command = await _next_command(reader, task)
    if isinstance(command, Stop) and command.error is not None:
        context.client.fail(EngineDeadError(command.error))
    context.client.stop_open()
    server.should_exit = True
    await task
    await context.close()
    return command


async def _next_command(reader: asyncio.StreamReader, *others: asyncio.Future[Any]) -> Command | None:
    """The next command. None: the supervisor has exited, or one of ``others`` was done first."""
    command = asyncio.ensure_future(read_command(reader))
    await asyncio.wait([command, *others], return_when=asyncio.FIRST_COMPLETED)
    if command.done():
        return command.result()
    command.cancel()
    return None


def main() -> int:
    """Entry point of the process."""
    ignore_signals()
    faulthandler.enable()
    die_with_parent(os.getppid())
    control = sys.stdin.fileno()
    start = read_start(control, ApiServerStart)
    if start is None:
        return 1
    log_to_stderr(start.log_level)
    return uvloop.run(_run(start, control))


if __name__ == "__main__":
    sys.exit(main())
