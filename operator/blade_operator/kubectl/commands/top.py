"""``top``: a table of the load of services and their engines, measured again and again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.load import WINDOW, Load, Monitor
from blade_operator.kubectl.output import STYLES, console, make_table, print_data, styled, warn
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import cost_of, namespace_of, the_service
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND

_NARROW = 100
"""Below so many columns those of `_LESS` are left out."""
_LESS = frozenset({"STATE", "REQ/S"})
_AMOUNTS = {
    "perMillionTokens": "for a million tokens",
    "perMillionCompletionTokens": "for a million tokens of answers",
    "perHour": "an hour",
}
_COLUMNS = ("NAME", "STATE", "RUN", "WAIT", "KV", "HIT", "REQ/S", "TOK/S", "TTFT", "TPOT", "MEMORY")


def run(options: argparse.Namespace) -> int:
    """Show the table until Ctrl-C; once with --once or -o, or where standard output is no terminal."""
    with open_place(options) as place, ExitStack() as stack:
        namespace = namespace_of(options, place)
        services = _services(place, namespace, options)
        if not services:
            warn(f"No LLMServices found in {namespace} namespace.")
            return 0
        monitors = [stack.enter_context(Monitor(place, service)) for service in services]
        screen = console()
        _measure(place, monitors)
        if options.once or options.output or not screen.is_terminal:
            time.sleep(options.interval)
            _measure(place, monitors)
            if options.output:
                print_data({"services": [_data(monitor) for monitor in monitors]}, options.output)
                return 0
            screen.print(_view(monitors, screen.width, since_start=True))
            return 0
        with Live(_view(monitors, screen.width), console=screen, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(options.interval)
                    _measure(place, monitors)
                    live.update(_view(monitors, screen.width), refresh=True)
            except KeyboardInterrupt:
                pass
        screen.print(_view(monitors, screen.width))
    return 0


def _services(place: Place, namespace: str, options: argparse.Namespace) -> list[Object]:
    if options.object:
        return [the_service(place, namespace, options.object)]
    return place.list(KIND, None if options.all_namespaces else namespace)


def _measure(place: Place, monitors: Sequence[Monitor]) -> None:
    for monitor in monitors:
        metadata = monitor.service["metadata"]
        try:
            monitor.service = place.get(KIND, metadata["namespace"], metadata["name"])
            monitor.measure()
        except CommandError:
            if not monitor.samples:
                raise  # at first it is an error; later the table says that it is old


def _data(monitor: Monitor) -> dict[str, Any]:
    service, *engines = monitor.loads(since_start=True)
    return {
        **asdict(service),
        **({"cost": cost} if (cost := cost_of(monitor.service)) else {}),
        "engines": [asdict(each) for each in engines],
        "problems": list(monitor.samples[-1].problems),
    }


def _view(monitors: Sequence[Monitor], width: int, *, since_start: bool = False) -> RenderableType:
    columns = [column for column in _COLUMNS if width >= _NARROW or column not in _LESS]
    table = make_table(*columns, numbers=_COLUMNS[2:])
    notes = list[RenderableType]()
    for monitor in monitors:
        service, *engines = monitor.loads(since_start=since_start)
        _add(table, columns, service, service.name, style="bold")
        for each in engines:
            _add(table, columns, each, f"  {each.name.removeprefix(service.name + '-')}")
        age = time.monotonic() - monitor.samples[-1].time
        if age > WINDOW / 2:
            notes.append(styled(f"{service.name}: no figures for {age:.0f} s", STYLES["bad"]))
        notes += [styled(problem, STYLES["warn"]) for problem in monitor.samples[-1].problems[:3]]
        if cost := cost_of(monitor.service):
            notes.append(styled(f"{service.name} costs: {_cost(cost)}"))
    over = "since the pods started" if since_start else f"of the last {WINDOW:.0f} s"
    notes.append(styled(f"TTFT and TPOT: p50/p99 in ms, {over}; KV: cache in use; HIT: prompt tokens from it", "dim"))
    return Group(table, *notes)


def _cost(cost: Object) -> str:
    """``status.cost`` in words."""
    amounts = [f"{cost[name]} {cost.get('currency', '')} {words}" for name, words in _AMOUNTS.items() if cost.get(name)]
    return f"{', '.join(amounts)}, over the last {cost.get('window', '')}" if amounts else "not measured yet"


def _add(table: Table, columns: Sequence[str], load: Load, name: str, style: str = "") -> None:
    cells = [
        load.state,
        _number(load.running),
        _number(load.waiting),
        _percent(load.kv_usage),
        _percent(load.hit_ratio),
        _number(load.requests_per_second, 1),
        _number(load.tokens_per_second),
        _times(load.ttft_p50, load.ttft_p99),
        _times(load.tpot_p50, load.tpot_p99),
        f"{load.memory_bytes / 2**30:.1f}Gi" if load.memory_bytes is not None else "-",
    ]
    indent = len(name) - len(name.lstrip())
    shown = styled(name, style)
    shown.pad_left(indent)
    named = dict(zip(_COLUMNS[1:], cells, strict=True))
    table.add_row(shown, *(styled(named[column], style) for column in columns[1:]))


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _times(p50: float | None, p99: float | None) -> str:
    if p50 is None or p99 is None:
        return "-"
    return f"{_milliseconds(p50)}/{_milliseconds(p99)}"


def _milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"
