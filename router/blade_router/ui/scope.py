"""What the viewers of one scope see: everybody's requests, or those of one key, serialised once for all of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

import msgspec

from blade_router.admission.keys import Key
from blade_router.ui.board import Board
from blade_router.ui.models import NamedModel
from blade_router.ui.points import MOST_KEYS, key_points, whole_point
from blade_router.ui.request_rows import SHOWN, public_row
from blade_router.ui.sampler import Sample
from blade_router.ui.state import Point, RequestRow

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Tick:
    """The same for all scopes of a second; JSON where it is bytes."""

    time: float
    board: Board
    acceptance: float | None
    models: Sequence[NamedModel]
    all_endpoints: bytes
    """As those see them who see everything."""
    idle_endpoints: bytes
    """As a client sees them that has no request in flight."""
    service: bytes
    public_service: bytes


class Scope:
    """One scope. ``key``: whose requests are seen; None: all."""

    def __init__(self, name: tuple[str, bytes], key: Key | None, sees_all: bool) -> None:
        self.name = name
        self.key = key
        self.sees_all = sees_all
        self._members: dict[str, bytes] = {}
        """The last of each that is sent whole, as JSON."""
        self._points: list[Point] = []
        self._snapshot: bytes | None = None
        self._board: Board | None = None
        self._time = 0.0

    @property
    def is_new(self) -> bool:
        """It has nothing yet."""
        return self._board is None

    def own_in_flight(self, board: Board) -> Counter[str]:
        """Requests in flight of the key, by endpoint."""
        return Counter(row.endpoint for row in self._all_rows(board) if row.status is None and row.endpoint)

    def update(self, tick: Tick, router: bytes, endpoints: bytes) -> bytes | None:
        """Take over what is new; returns the event that says so, None at first, when there is only a snapshot."""
        board = tick.board
        first = self._board is None
        members = {
            "router": router,
            "service": tick.service if self.sees_all else tick.public_service,
            "endpoints": endpoints,
        }
        samples = list(board.samples.values()) if first else board.new_samples
        points = self._new_points(samples, tick)
        self._points = [*self._points, *points][-300:]
        changed: dict[str, object] = {
            name: msgspec.Raw(value) for name, value in members.items() if value != self._members.get(name)
        }
        rows = [] if first else self._new_rows(board)
        if points:
            changed["traffic"] = {"interval": 1, "points": points}
        if rows:
            changed["requests"] = self._shown(rows[-2 * SHOWN :])
        self._members, self._board, self._time, self._snapshot = members, board, tick.time, None
        return None if first else event(b"update", _encode({"time": tick.time, **changed}))

    def snapshot(self) -> bytes:
        """The event with everything as of the last update."""
        if self._snapshot is None:
            assert self._board is not None
            rows = sorted(self._all_rows(self._board), key=lambda row: row.started)
            state = {
                "time": self._time,
                **{name: msgspec.Raw(value) for name, value in self._members.items()},
                "traffic": {"interval": 1, "points": self._points},
                "requests": self._shown(rows[-SHOWN:]),
            }
            self._snapshot = event(b"snapshot", _encode(state))
        return self._snapshot

    def _all_rows(self, board: Board) -> Collection[RequestRow]:
        if self.sees_all or self.key is None:
            return board.rows.values()
        return board.rows_of(self.key.name)

    def _new_rows(self, board: Board) -> list[RequestRow]:
        if self.sees_all or self.key is None:
            return board.new_rows
        name = self.key.name
        return [row for row in board.new_rows if row.key == name]

    def _shown(self, rows: Iterable[RequestRow]) -> list[RequestRow]:
        return list(rows) if self.sees_all else [public_row(row) for row in rows]

    def _new_points(self, samples: Sequence[Sample], tick: Tick) -> list[Point]:
        board = tick.board
        if not self.sees_all and self.key is not None:
            return key_points(samples, self.key.name, self._all_rows(board))
        top = frozenset(nlargest(MOST_KEYS, board.tokens, key=lambda key: board.tokens[key]))
        last = samples[-1].time if samples else 0
        return [whole_point(each, top, tick.acceptance if each.time == last else None) for each in samples]


def event(name: bytes, data: bytes) -> bytes:
    """A server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name, data)
