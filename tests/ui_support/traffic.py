"""Simulated requests, engines and points in time: a queueing model with as many streams as a scenario asks for."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

KEPT = 200
"""Requests that a router remembers for the page."""
MANY = 500
HISTORY = 300
"""Points that it remembers, one a second."""
_KV_TOKENS = 393216
_GPU = 80 * 2**30


@dataclass
class Load:
    """What a simulated service meets.

    Attributes:
        engines: names of the engines.
        streams: requests that run at once, on average.
        duration: seconds that a request takes, on average.
        keys: names of API keys; ``("",)`` where there are none.
        own: the only key that is seen, where the viewer sees its own requests alone.
        failing: index of the engine that is not reachable.
        revisions: revision of each engine.
        weights: share of each engine, of 100.
        models: models that are asked for, as often as they are named.
        plain: engines on CPUs that say little: no revision, GPU, adapter or speculative decoding.
    """

    engines: tuple[str, ...]
    streams: int = 24
    duration: float = 8.0
    keys: tuple[str, ...] = ("team-a", "team-b", "batch")
    own: str | None = None
    failing: int | None = None
    revisions: tuple[str | None, ...] = ()
    weights: tuple[int, ...] = ()
    plain: bool = False
    models: tuple[str, ...] = ("qwen3-8b", "qwen3-8b", "qwen3-8b", "sql", "support")


@dataclass
class Traffic:
    """The requests of a load, second by second; equal for an equal seed."""

    load: Load
    random: random.Random = field(default_factory=lambda: random.Random(17))
    now: float = 0.0
    points: deque[Object] = field(default_factory=lambda: deque(maxlen=HISTORY))
    rows: dict[str, Object] = field(default_factory=dict)
    running: dict[str, tuple[float, Object]] = field(default_factory=dict)
    """Requests in flight by id: when they end, and the row."""

    def begin(self, now: float) -> None:
        """Five minutes until ``now``; of many streams only the last of them, whose points are repeated before."""
        seconds = HISTORY if self.load.streams < MANY else HISTORY // 5
        for second in range(1 - seconds, 1):
            self.tick(now + second)
        if seconds == HISTORY:
            return
        settled = list(self.points)[seconds // 2 :]
        self.points = deque(settled, maxlen=HISTORY)
        while len(self.points) < HISTORY:
            copied = settled[-1 - len(self.points) % len(settled)]
            self.points.appendleft({**copied, "time": self.points[0]["time"] - 1})

    def tick(self, now: float) -> set[str]:
        """One second until ``now``. Returns the ids of rows that are new or have changed."""
        self.now = now
        changed = self._end(now)
        started = max(0, round(self.random.gauss(1, 0.15) * self._missing()))
        for before in sorted((self.random.random() for _ in range(started)), reverse=True):
            changed.add(self._start(now, now - before)["id"])
        while len(self.rows) > KEPT:
            self.rows.pop(next(iter(self.rows)))
        self.points.append(self._point(now, changed))
        return changed & self.rows.keys()

    def endpoints(self) -> list[Object]:
        """The engines, as the router sees them."""
        by_engine: dict[str, int] = dict.fromkeys(self.load.engines, 0)
        for _, row in self.running.values():
            by_engine[row["endpoint"]] += 1
        return [self._endpoint(index, name, by_engine[name]) for index, name in enumerate(self.load.engines)]

    def _missing(self) -> float:
        """Requests to start in this second, so that about as many run as are to run."""
        if not self.points:
            return self.load.streams * 0.7
        return max(0.2, self.load.streams / self.load.duration + (self.load.streams - len(self.running)) * 0.1)

    def _end(self, now: float) -> set[str]:
        changed = set()
        for name, (end, row) in list(self.running.items()):
            age = now - row["started"]
            first = row["chosen"] + 0.15 + len(name) * 0.002 + row["promptTokens"] / 9000
            if row["firstToken"] is None and age >= first:
                row["firstToken"] = round(first, 4)
                row["cachedTokens"] = int(row["promptTokens"] * self.random.choice((0, 0.35, 0.8)))
                changed.add(name)
            if row["firstToken"] is not None:
                row["completionTokens"] = max(1, int((min(age, end - row["started"]) - first) * 36))
            if now >= end:
                del self.running[name]
                self._finish(row, end)
                changed.add(name)
        return changed

    def _finish(self, row: Object, end: float) -> None:
        row["end"] = round(end - row["started"], 4)
        row["firstToken"] = min(row["firstToken"] or row["end"], row["end"])
        draw = self.random.random()
        row["status"] = 200
        row["attempts"][-1]["outcome"] = "200"
        if draw < 0.02:
            row |= {"status": 503, "error": "engine_unavailable", "firstToken": None, "completionTokens": 0}
            row["attempts"][-1]["outcome"] = "503"
        elif draw < 0.03:
            row |= {"status": 400, "error": "context_length_exceeded", "firstToken": None, "completionTokens": 0}
            row["attempts"][-1]["outcome"] = "400"
        elif draw < 0.06 and len(self.load.engines) > 1:
            others = [name for name in self.load.engines if name != row["endpoint"]]
            middle = row["firstToken"] + (row["end"] - row["firstToken"]) * 0.4
            row["attempts"][-1]["outcome"] = "connection lost"
            row["endpoint"] = self.random.choice(others)
            row["attempts"].append({"endpoint": row["endpoint"], "at": round(middle, 4), "outcome": "resumed"})

    def _start(self, now: float, started: float) -> Object:
        draw = self.random
        identifier = f"req-{draw.getrandbits(64):016x}"
        queued = round(draw.expovariate(20), 4)
        weights = self.load.weights or tuple(
            0 if index == self.load.failing else 1 for index in range(len(self.load.engines))
        )
        endpoint = draw.choices(self.load.engines, weights)[0]
        prompt = int(min(30000, 60 + draw.lognormvariate(6, 1.1)))
        blocks = max(1, prompt // 64)
        attempts = []
        if self.load.failing is not None and draw.random() < 0.15:
            failed = self.load.engines[self.load.failing]
            attempts.append({"endpoint": failed, "at": queued, "outcome": "connect"})
        elif len(self.load.engines) > 1 and draw.random() < 0.04:
            busy = draw.choice([name for name in self.load.engines if name != endpoint])
            attempts.append({"endpoint": busy, "at": queued, "outcome": "503"})
        load, cost = draw.randint(0, 9), draw.uniform(2, 90)
        reason = f"auto prefix={draw.randint(0, blocks)}/{blocks} in_flight={load} ms={cost:.1f}"
        if self.load.revisions:
            reason = f"canary rev={self.load.revisions[self.load.engines.index(endpoint)]} {reason}"
        if attempts:
            reason += f" retry={attempts[0]['outcome']}"
        attempts.append({"endpoint": endpoint, "at": round(queued + 0.02 * len(attempts), 4), "outcome": "running"})
        row = {
            "id": identifier, "traceId": f"{draw.getrandbits(128):032x}", "started": round(started, 4),
            "key": self.load.own or draw.choices(self.load.keys, range(len(self.load.keys), 0, -1))[0] or None,
            "model": draw.choice(self.load.models), "path": "/v1/chat/completions", "stream": draw.random() < 0.8,
            "status": None, "error": None, "endpoint": endpoint, "reason": reason,
            "promptTokens": prompt, "cachedTokens": None, "completionTokens": None,
            "queued": 0.0, "chosen": queued, "firstToken": None, "end": None, "attempts": attempts,
        }  # fmt: skip
        self.rows[identifier] = row
        self.running[identifier] = (now + max(0.5, draw.gammavariate(2, self.load.duration / 2)), row)
        return row

    def _point(self, now: float, changed: set[str]) -> Object:
        draw = self.random
        started = sum(1 for name in changed if name in self.running and self.running[name][1]["started"] > now - 1)
        streams = len(self.running)
        slow = 1 + streams / 4000
        keys = (self.load.own,) if self.load.own else self.load.keys
        share = [1 / (index + 1) for index in range(len(keys))]
        total = sum(share)
        return {
            "time": now, "rate": float(started), "inFlight": streams,
            "queue": 0 if self.load.plain else int(draw.expovariate(0.4)),
            "errors": float(draw.random() < 0.12 + 0.4 * (self.load.failing is not None)),
            "ttft": [round(value * slow * draw.uniform(0.92, 1.08), 4) for value in (0.18, 0.42, 0.97)],
            "tpot": [round(value * slow * draw.uniform(0.95, 1.05), 5) for value in (0.024, 0.031, 0.048)],
            "prefixHit": round(min(1.0, draw.gauss(0.58, 0.03)), 4),
            "acceptance": None if self.load.plain else round(draw.gauss(0.7, 0.02), 4),
            "tokens": {key or "": round(streams * 36 * part / total * draw.uniform(0.9, 1.1), 1)
                       for key, part in zip(keys, share, strict=True)},
        }  # fmt: skip

    def _endpoint(self, index: int, name: str, running: int) -> Object:
        failing = index == self.load.failing
        known = not failing
        used = min(0.98, 0.12 + running * 0.022)
        endpoint = {
            "name": name, "address": f"10.0.{index // 200}.{7 + index % 200}:8081",
            "state": "ejected" if failing else "ready",
            "why": "connection refused, 5 failures in a row; next probe in 8 s" if failing else None,
            "revision": self.load.revisions[index] if self.load.revisions else "4ca6cbb5",
            "weight": self.load.weights[index] if self.load.weights else 1.0,
            "models": ["qwen3-8b", "qwen"], "adapters": ["sql", "support"] if known else [],
            "inFlight": running, "running": running if known else None, "waiting": running // 30 if known else None,
            "maxRunning": 64 if known else None, "kvUsed": round(used, 4) if known else None,
            "kvTokens": int(_KV_TOKENS * used) if known else None, "kvTokensTotal": _KV_TOKENS if known else None,
            "prefixHit": round(0.5 + (index * 7 % 20) / 60, 3) if known else None,
            "acceptance": round(0.66 + (index * 3 % 10) / 100, 3) if known else None,
            "tokensPerSecond": round(running * 36.4, 1) if known else None,
            "gpus": [_gpu(used)] if known else [],
        }  # fmt: skip
        if self.load.plain:
            address = name.removeprefix("http://")
            endpoint |= {"address": address, "revision": None, "adapters": [], "acceptance": None, "gpus": []}
        return endpoint


def _gpu(used: float) -> Object:
    return {"name": "NVIDIA H100 80GB HBM3", "memoryUsed": int(_GPU * (0.86 + used / 12)), "memoryTotal": _GPU}
