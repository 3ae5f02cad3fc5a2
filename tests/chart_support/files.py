"""The chart's files, read without Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/bladellm"


def chart() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "Chart.yaml").read_text()))


def values() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def schema() -> dict[str, Any]:
    return dict(json.loads((CHART / "values.schema.json").read_text()))


def rules() -> list[dict[str, list[str]]]:
    """RBAC rules of the operator where it runs LLMServices."""
    files = [CHART / f"files/{name}.yaml" for name in ("rules", "rules-keys")]
    return [rule for file in files for rule in yaml.safe_load(file.read_text())]


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """``(dotted path, value)`` of everything that is no mapping with entries."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{path}.{name}" if path else name)
    else:
        yield path, node


def table(text: str, header: str) -> list[list[str]]:
    """Rows of the Markdown table whose first line starts with ``header``."""
    _, _, rest = text.partition(f"\n{header}")
    assert rest, f"no table {header!r}"
    lines = rest.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
