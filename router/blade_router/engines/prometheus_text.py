"""Reading a few samples from an engine's Prometheus page.

Such a page is long and is read often: lines are scanned, not parsed into families.
"""

import math
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def samples(page: bytes, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names; malformed lines are skipped."""
    for line in page.decode("utf-8", "replace").splitlines():
        name = line[: min(end for end in (line.find("{"), line.find(" "), len(line)) if end >= 0)]
        if name not in names:
            continue
        labels, _, rest = line[len(name) :].rpartition("}")
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            yield Sample(name, dict(_LABEL.findall(labels)), value)
