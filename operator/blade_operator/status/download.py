"""``status.model``: size of the model and progress of its download, reported in steps worth a write."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.pods import FETCH
from blade_operator.spec.quantity import format_bytes
from blade_operator.status.inputs import StatusInputs
from blade_protocol.fetch import FetchProgress

STEP = 0.05
"""Share of the model that has to be downloaded between two writes."""
MIN_INTERVAL_S = 5.0
"""Shortest time between two writes."""


def download(inputs: StatusInputs, now: datetime) -> dict[str, Any] | None:
    """``status.model``, or None when nothing is known of the model. Equal to the last one until a step is reached."""
    before: dict[str, Any] | None = inputs.last_status.get("model")
    if not inputs.same_engines:
        before = None
    if before and not (before.get("bytes") and "downloaded" in before):
        before = None  # users can edit a status, too
    fetches = [(pod, state) for pod in inputs.current_pods if (state := podutil.container(pod, FETCH))]
    for pod, state in fetches:
        if state.termination is not None and state.termination.exit_code == 0:
            if before and before["downloaded"] == before["bytes"]:
                return before
            report = podutil.fetch_report(pod)
            size = report.bytes if report and report.bytes else before["bytes"] if before else 0
            return {"bytes": size, "downloaded": size} if size else None
    reports = [found for pod, state in fetches if state.running and (found := _progress(inputs, pod))]
    if not reports:
        return before if fetches else None
    # The furthest download is the first to serve, or the one the others wait for.
    furthest = max(reports, key=lambda progress: progress.bytes_done)
    return before if before and not _is_significant(before, furthest, now) else _entry(furthest, now)


def is_downloading(inputs: StatusInputs) -> bool:
    """Whether a download is running, so that a reconcile soon may find progress."""
    return any((state := podutil.container(pod, FETCH)) and state.running for pod in inputs.current_pods)


def describe(model: dict[str, Any]) -> str:
    """The progress in a readable sentence."""
    done, size, speed = model["downloaded"], model["bytes"], model.get("bytesPerSecond", 0)
    text = f"downloading: {100 * done // size} % of {_bytes(size)}"
    if speed:
        return f"{text}, {_bytes(60 * speed)}/min, {_duration(model.get('etaSeconds', 0))} left"
    return f"{text}, nothing arrives at the moment" if done else text


def _progress(inputs: StatusInputs, pod: dict[str, Any]) -> FetchProgress | None:
    progress = inputs.downloads.get(pod["metadata"]["name"])
    return progress if progress and progress.bytes else None


def _is_significant(before: dict[str, Any], progress: FetchProgress, now: datetime) -> bool:
    if before["bytes"] != progress.bytes:
        return True
    if podutil.age(before.get("observedAt"), now) < MIN_INTERVAL_S:
        return False
    halted = bool(before.get("bytesPerSecond")) != bool(progress.bytes_per_second)
    return halted or abs(progress.bytes_done - before["downloaded"]) >= STEP * progress.bytes


def _entry(progress: FetchProgress, now: datetime) -> dict[str, Any]:
    entry = {"bytes": progress.bytes, "downloaded": min(progress.bytes_done, progress.bytes)}
    if speed := progress.bytes_per_second:
        entry |= {"bytesPerSecond": speed, "etaSeconds": -(-(entry["bytes"] - entry["downloaded"]) // speed)}
    return entry | {"observedAt": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _bytes(count: int) -> str:
    """``15.3 GiB``."""
    return re.sub(r"([A-Z]i)?$", r" \1B", format_bytes(count), count=1)


def _duration(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    return f"{-(-seconds // 60)} min" if seconds < 7200 else f"{-(-seconds // 3600)} h"
