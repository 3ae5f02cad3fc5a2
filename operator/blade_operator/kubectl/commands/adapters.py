"""``adapters``: LoRA adapters, those of LoRAAdapter objects and of services' specs: where they are, and their state."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.output import STYLES, console, make_table, print_data, styled, warn
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place
from blade_operator.kubectl.pods import bare, namespace_of, ready_router
from blade_operator.kubectl.scrape import Scrape, scrape
from blade_operator.model.objects import Object
from blade_protocol import metrics, paths
from blade_protocol.labels import ADAPTER_KIND, KIND


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    with open_place(options) as place:
        namespace = namespace_of(options, place)
        services = place.list(KIND, namespace)
        objects = {each["metadata"]["name"]: each for each in place.list(ADAPTER_KIND, namespace)}
        if options.object:
            services = [place.get(KIND, namespace, bare(options.object))]
        rows = [row for service in services for row in _of_service(place, service, objects)]
        placed = {row["name"] for row in rows}
        if not options.object:
            rows += [_unplaced(obj) for name, obj in objects.items() if name not in placed]
    if options.output:
        print_data({"adapters": rows}, options.output)
        return 0
    if not rows:
        warn(f"No adapters found in {namespace} namespace.")
        return 0
    table = make_table("NAME", "SERVICE", "ENGINES", "STATE", "SIZE", "REQUESTS", "PODS", numbers=("SIZE", "REQUESTS"))
    for row in rows:
        style = STYLES["ok"] if row["desired"] and row["loaded"] >= row["desired"] else STYLES["warn"]
        cells = [row["name"], row["service"] or "-", f"{row['loaded']}/{row['desired']}"]
        table.add_row(
            *map(styled, cells),
            styled(row["state"], style),
            styled(f"{row['bytes'] / 2**20:.1f} MiB" if row["bytes"] else "-"),
            styled("-" if row["requests"] is None else row["requests"]),
            styled(", ".join(row["pods"]) or "-"),
        )
    console().print(table)
    return 0


def _of_service(place: Place, service: Object, objects: dict[str, Object]) -> list[dict[str, Any]]:
    """The adapters of a service: what its status says, with the requests that its router counts."""
    found = service.get("status", {}).get("adapters") or []
    known = {each["name"] for each in found}
    more = [
        {"name": name, **entry}
        for name, obj in objects.items()
        for entry in obj.get("status", {}).get("services") or ()
        if entry.get("service") == service["metadata"]["name"] and name not in known
    ]
    if not found and not more:
        return []
    counted = _requests(place, service)
    return [
        {
            "name": each["name"],
            "service": service["metadata"]["name"],
            "uri": objects.get(each["name"], {}).get("spec", {}).get("uri", ""),
            "desired": each.get("desired", 0),
            "loaded": each.get("loaded", 0),
            "state": each.get("reason") or _state(each),
            "bytes": each.get("bytes", 0),
            "requests": counted.get(each["name"], 0) if counted is not None else None,
            "pods": list(each.get("pods") or ()),
        }
        for each in (*found, *more)
    ]


def _state(entry: Object) -> str:
    desired, loaded = entry.get("desired", 0), entry.get("loaded", 0)
    if not desired:
        return "left out"
    return "placed" if loaded >= desired else "being placed"


def _unplaced(obj: Object) -> dict[str, Any]:
    """A LoRAAdapter that no service of the namespace has."""
    conditions = obj.get("status", {}).get("conditions") or ()
    why = next((each.get("message", "") for each in conditions if each["type"] == "Ready"), "")
    return {
        "name": obj["metadata"]["name"],
        "service": "",
        "uri": obj["spec"].get("uri", ""),
        "desired": 0,
        "loaded": 0,
        "state": why or "no LLMService selects it",
        "bytes": 0,
        "requests": None,
        "pods": [],
    }


def _requests(place: Place, service: Object) -> dict[str, int] | None:
    """Requests that one router counted since it started, by model name; None when it does not say."""
    with contextlib.suppress(CommandError):
        with place.reach(ready_router(place, service), "admin") as reached:
            found: Scrape = scrape(reached, paths.METRICS)
        counts: dict[str, int] = {}
        for labels, value in found.of(f"{metrics.ROUTER_MODEL_REQUESTS}_total"):
            counts[labels.get("model", "")] = counts.get(labels.get("model", ""), 0) + int(value)
        return counts
    return None
