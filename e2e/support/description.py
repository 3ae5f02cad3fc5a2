"""What ``kubectl get`` and ``kubectl describe`` print of an LLMService, cut to what explains it and made repeatable.

Kept of the description: the phase, conditions that report a problem, failures, and the check's table where it
failed. Names of pods, times and addresses differ each time and get placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

NAMESPACE: Final = "team"
"""Stands for the test's namespace."""
_LABEL: Final = re.compile(r"^(?P<indent> +)(?P<label>[A-Z][\w ]*?):(?P<gap> *)(?P<value>.*)$")
_SHOWN: Final = ("Conditions", "Failures", "Phase", "Preflight")
_NOISE: Final = frozenset({"Last Transition Time", "Observed Generation"})
_RESTARTS: Final = re.compile(r", restarted (at least )?\d+ times?(, each time after a longer pause)?")


def table(text: str, names: Mapping[str, str]) -> str:
    """What ``kubectl get llm NAME`` printed, with ``names`` replaced by what stands for them, and aligned again."""
    rows = [line.split() for line in repeatable(text, names).splitlines()]
    for row in rows[1:]:
        row[-1] = "2m"  # its age
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def extract(text: str, names: Mapping[str, str]) -> str:
    """The part of what ``kubectl describe llm NAME`` printed that explains the failure."""
    _, _, rest = text.partition("\nStatus:\n")
    status, _, _ = rest.partition("\nEvents:")
    lines = [line for line in _shown(status.splitlines()) if _label(line) not in _NOISE]
    return repeatable("\n".join(["Status:", *map(str.rstrip, lines)]), names)


def repeatable(text: str, names: Mapping[str, str]) -> str:
    """``text`` without what differs from run to run."""
    for name, stands_for in names.items():
        text = text.replace(name, stands_for)
    text = re.sub(r"(-engine-)[0-9a-f]{8}\b", r"\1<revision>", text)
    text = re.sub(r"(-(?:engine-<revision>|router)-)[a-z0-9]{6,10}-[a-z0-9]{5}\b", r"\1<pod>", text)
    text = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "<ip>", text)
    return re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>", text)


def stable(extracted: str) -> list[str]:
    """The lines of an extract that are the same each time: not how often and how exactly a program ended."""
    lines = (" ".join(_RESTARTS.sub("", line).split()) for line in extracted.splitlines())
    return [line for line in lines if not line.startswith(("Restarts:", "Exit Code:", "Last Log:"))]


def _shown(lines: list[str]) -> Iterator[str]:
    """The lines of the fields in `_SHOWN`; of lists only the entries that are not fine."""
    level = len(lines[0]) - len(lines[0].lstrip())
    for field in _split(lines, lambda line: line[level : level + 1].strip() != ""):
        label = _label(field[0])
        if label == "Phase":
            yield field[0]
        elif label in _SHOWN:
            shown = [line for entry in _entries(field[1:]) if not _fine(label, entry) for line in entry]
            yield from [field[0], *shown] if shown else []


def _entries(lines: list[str]) -> list[list[str]]:
    """A list of objects is printed without a mark between them; each begins with the same label."""
    first = lines[0].partition(":")[0]
    return _split(lines, lambda line: line.startswith(f"{first}:"))


def _split(lines: list[str], begins: Callable[[str], bool]) -> list[list[str]]:
    """Cut before every line that begins a part; the first one has to."""
    parts: list[list[str]] = []
    for line in lines:
        if begins(line):
            parts.append([])
        parts[-1].append(line)
    return parts


def _fine(kind: str, entry: list[str]) -> bool:
    values = {match["label"]: match["value"] for line in entry if (match := _LABEL.match(line))}
    if kind == "Conditions":
        if values["Type"] in ("Reconciling", "Stalled"):
            return True  # they repeat Progressing
        if values["Type"] == "Progressing":
            return values["Reason"] != "Stalled"
        return values["Status"] != ("True" if values["Type"] == "Degraded" else "False")
    if kind == "Preflight":
        return (values["Failed"], values["Warning"]) == ("0", "0")
    return values["Container"] == "router"  # all these services fail in their engines


def _label(line: str) -> str:
    match = _LABEL.match(line)
    return match["label"] if match else ""
