"""Reports how services start: a live checklist on a terminal, one line per transition in a log file."""

from __future__ import annotations

import re

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from blade_operator.model.objects import Object
from blade_operator.program import program

_LINE_MESSAGE = 160
_PERCENT = re.compile(r"\((\d+) %\)")
_NEGATIVE = ("Degraded", "Progressing", "Reconciling", "Stalled", "InternalTokenRefused")
"""Conditions that are reported as False only after they were reported as True."""


def conditions(service: Object) -> list[Object]:
    """The service's conditions."""
    found: list[Object] = service.get("status", {}).get("conditions", [])
    return found


def is_ready(service: Object) -> bool:
    """Whether the status says that the current spec is ready."""
    status = service.get("status", {})
    return status.get("observedGeneration") == service["metadata"]["generation"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions(service)
    )


def is_stalled(service: Object) -> bool:
    """Whether the service is stalled: something fails again and again, or cannot even start."""
    return not is_ready(service) and any(
        failure.get("restarts", 0) >= 2 or failure.get("reason", "").startswith(("CreateContainer", "RunContainer"))
        for failure in service.get("status", {}).get("failures", [])
    )


def explanation(service: Object) -> list[str]:
    """The problems of a service, most specific first: failed checks, last log lines, then how containers ended."""
    status = service.get("status", {})
    lines = [
        f"{item['name']}: {item['status']}: {item.get('detail', '')}"
        for entry in status.get("preflight", [])[:1]
        for item in entry.get("items", [])
        if item["status"] != "PASS"
    ]
    failures = status.get("failures", [])
    lines += [failure["lastLog"] for failure in failures if failure.get("lastLog")]
    lines += [": ".join(filter(None, (failure["pod"], failure.get("message", "")))) for failure in failures]
    if not failures:
        lines += [each.get("message", "") for each in conditions(service) if each["type"] == "Ready"]
    return list(dict.fromkeys(line for line in lines if line))


class Reporter:
    """Shows one service at a time in full, and the transitions of all of them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._watched = ""
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._told: set[tuple[str, str]] = set()
        """Conditions for which a line was printed."""
        self._spinner = Spinner("dots", style="cyan")
        self._note = ""

    def watch(self, service: Object) -> None:
        """Show this service's checklist until ``end_checklist``."""
        self._watched = service["metadata"]["uid"]
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=False)
            self._live.start()
            self._live.update(self._checklist(service))

    def end_checklist(self) -> None:
        """Leave the checklist as it is and continue with lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, service: Object, note: str = "") -> None:
        """Show a service that may have changed; ``note`` is the latest log line of the container that prepares it."""
        live = self._live if service["metadata"]["uid"] == self._watched else None
        if live is not None:
            live.update(self._checklist(service, note), refresh=True)
        elif note and note != self._note:
            self._console.print(Text(f"{service['metadata']['name']}: {note}"), soft_wrap=True)
        self._note = note
        for each in conditions(service):
            key = (service["metadata"]["uid"], each["type"])
            state = (each["status"], each.get("reason", ""))
            if self._known.get(key) == state:
                continue
            self._known[key] = state
            calm = each["type"] in _NEGATIVE and each["status"] == "False"
            if live is None and (key in self._told or not calm):
                self._told.add(key)
                self._console.print(_line(service, each), highlight=False, soft_wrap=True)

    def explain(self, service: Object) -> None:
        """Show prominently what keeps the service from becoming ready."""
        lines = explanation(service)
        title = f"{service['metadata']['name']} cannot become ready"
        failures = service.get("status", {}).get("failures", [])
        first = next((failure for failure in failures if failure["container"]), None)
        pod = f"{first['pod']} -c {first['container']}" if first else service["metadata"]["name"]
        hint = f"{program()} logs {pod}"
        if self._console.is_terminal:
            text = Text("\n".join(lines))
            self._console.print(Panel(text, title=title, border_style="red", subtitle=hint))
        else:
            self._console.print(
                Text("\n".join([f"{title}:", *(f"  {line}" for line in lines), f"More: {hint}"])), soft_wrap=True
            )

    def _checklist(self, service: Object, note: str = "") -> RenderableType:
        failures = service.get("status", {}).get("failures", [])
        failing = any(each.get("restarts", 0) or "BackOff" in each.get("reason", "") for each in failures)
        table = Table.grid(padding=(0, 1))
        shown = [each for each in conditions(service) if each["type"] not in (*_NEGATIVE, "Ready")]
        for each in shown:
            mark: RenderableType = self._spinner
            if each["status"] == "True":
                mark = Text("✓", style="green")
            elif each["status"] == "False" and failing:
                mark = Text("!", style="red")
            message = each.get("message", "") or each.get("reason", "")
            table.add_row(mark, each["type"], Text(message, style="dim", overflow="ellipsis", no_wrap=True))
        done = sum(each["status"] == "True" for each in shown)
        bars = Table.grid(padding=(0, 1))
        bars.add_row(ProgressBar(total=max(1, len(shown)), completed=done, width=40), f"{done} of {len(shown)}")
        if note:
            share = _PERCENT.search(note)
            bars.add_row(ProgressBar(completed=int(share[1]), width=40) if share else self._spinner, note)
        head = Text.assemble(
            "LLMService ", (service["metadata"]["name"], "bold"), "  ", service["spec"]["model"]["uri"]
        )
        return Group(head, bars, table)


def _line(service: Object, condition: Object) -> str:
    message = condition.get("message", "")
    if condition["type"] == "Ready" and condition["status"] == "True":
        message = f"{message}, at {service['status'].get('url', '')}"
    message = message if len(message) <= _LINE_MESSAGE else message[: _LINE_MESSAGE - 1] + "…"
    return (
        f"{service['metadata']['name']}: {condition['type']} is {condition['status']} ({condition.get('reason', '')})"
        + (f": {message}" if message else "")
    )
