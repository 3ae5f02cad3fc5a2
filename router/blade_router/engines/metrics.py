"""Reading the few numbers one needs from an engine's Prometheus page.

Such a page is long, and read often: lines are looked at, not parsed into families.
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def samples(page: bytes, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names; lines that make no sense are passed over."""
    for line in page.decode("utf-8", "replace").splitlines():
        name = line[: min(end for end in (line.find("{"), line.find(" "), len(line)) if end >= 0)]
        if name not in names:
            continue
        labels, _, rest = line[len(name) :].rpartition("}")
        try:
            yield Sample(name, dict(_LABEL.findall(labels)), float(rest.split()[0]))
        except (ValueError, IndexError):
            continue
