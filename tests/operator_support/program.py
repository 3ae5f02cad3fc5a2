"""A fake engine and router: a real process with the same ports, paths and signals, that fails on demand.

It is run as a script. Files steer a running one: while ``FOLDER/unready`` exists ``/health`` says 503, while
``FOLDER/stuck`` exists ``/live`` does, and while ``FOLDER/hold`` exists no request to the API ends. At SIGTERM it keeps
in the folder which endpoints a router would have seen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATE = {
    "model": "fake",
    "ready": True,
    "running": 0,
    "waiting": 0,
    "kv_blocks_total": 10,
    "kv_blocks_free": 10,
    "prompt_tokens_total": 0,
    "cached_tokens_total": 0,
    "generation_tokens_total": 0,
    "preemptions_total": 0,
    "sequence": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--internal_port", type=int)
    parser.add_argument("--steer", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--start", type=float, default=0.0, help="seconds before it listens")
    parser.add_argument("--drain", type=float, default=0.0, help="seconds between SIGTERM and the end")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--ranks", type=int, default=1, help="processes that compute together, this one included")
    parser.add_argument("--crash", type=int, help="exit with this code at once")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--tls_cert", type=Path)
    parser.add_argument("--tls_key", type=Path)
    options, rest = parser.parse_known_args()
    print(f"started pid {os.getpid()} {' '.join(rest)}", flush=True)
    if options.crash is not None:
        print("cannot go on: the disk is on fire", flush=True)
        sys.exit(options.crash)
    ranks = [subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) for _ in range(1, options.ranks)]
    time.sleep(options.start)
    draining = threading.Event()
    answers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.respond(503 if draining.is_set() or (options.steer / "unready").exists() else 200, {})
            elif self.path == "/live":
                self.respond(503 if (options.steer / "stuck").exists() else 200, {})
            elif self.path == "/internal/state":
                state = {"revision": os.environ.get("BLADE_REVISION", ""), "epoch": str(os.getpid())}
                self.respond(200, STATE | state | {"draining": draining.is_set()})
            elif self.path == "/v1/models":
                self.respond(200, {"object": "list", "data": []})
            elif self.path == "/about":
                config = options.config.read_text() if options.config else ""
                found = {"pid": os.getpid(), "argv": sys.argv, "env": dict(os.environ), "config": config}
                self.respond(200, found | {"ranks": [rank.pid for rank in ranks]})
            else:
                self.respond(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "{}")
            if self.path.startswith("/v1/"):
                print(f"chat {self.headers.get('x-number', '')}", flush=True)
                while (options.steer / "hold").exists():
                    time.sleep(0.05)
                self.answer(streams=bool(body.get("stream")))
                return
            if self.path == "/internal/service":  # what the operator reports for the web UI
                self.respond(200, {})
                return
            if body.get("draining", True):
                draining.set()
            else:
                draining.clear()
            self.respond(200, {})

        def answer(self, streams: bool) -> None:
            """A completion; every ``FAKE_FAILS``-th is an error."""
            every = int(os.environ.get("FAKE_FAILS", "0"))
            if every and next(answers) % every == 0:
                self.respond(500, {"error": {"message": "CUDA error: an illegal memory access", "code": None}})
            elif streams:
                self.stream()
            else:
                choice = {"index": 0, "text": "so it is", "finish_reason": "stop"}
                usage = {"prompt_tokens": 3, "completion_tokens": 3}
                self.respond(200, {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

        def stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'data: {"object": "chat.completion.chunk"}\n\ndata: [DONE]\n\n')

        def respond(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    def on_sigterm(_: int, __: Any) -> None:
        if not options.deaf:
            print("draining", flush=True)
            endpoints = Path(os.environ.get("BLADE_ENDPOINTS_DIR", "/nonexistent")) / "qwen-engine.json"
            if endpoints.exists() and options.steer.is_dir():
                (options.steer / f"at-sigterm-{os.getpid()}").write_text(endpoints.read_text())
            draining.set()
            threading.Timer(options.drain, lambda: os._exit(0)).start()

    signal.signal(signal.SIGTERM, on_sigterm)
    servers = [ThreadingHTTPServer((options.host, p), Handler) for p in (options.port, options.internal_port) if p]
    if number := os.environ.get("BLADE_LISTEN_FD"):
        shared = ThreadingHTTPServer((options.host, 0), Handler, bind_and_activate=False)
        shared.socket = socket.socket(fileno=int(number))
        servers.append(shared)
    admin = [ThreadingHTTPServer((options.host, int(os.environ.get("BLADE_ADMIN_PORT", "0"))), Handler)]
    for server in servers + admin:
        if options.tls_cert and server not in admin:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(options.tls_cert, options.tls_key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print("listening", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
