"""The check's two outputs: lines for people, whose layout is a contract, and JSON for the operator.

A line is the name right-justified to 16 columns, the status ending in column 27, two blanks, a dash, two blanks and the
detail; after a blank line come the totals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from blade_protocol.check import CheckItem, CheckReport

_SHORTEST_DETAIL: Final = 16
_CUT: Final = "..."


def format_item(item: CheckItem) -> str:
    """One line of the report, without a line end; line ends in the detail become blanks."""
    return f"{item.name:>16}{item.status:>11}  -  {' '.join(item.detail.split())}"


def format_totals(report: CheckReport) -> str:
    """The last line of the report."""
    return f"PASS {report.passed}, WARNING {report.warnings}, FAILED {report.failed}"


def summarize(items: Sequence[CheckItem]) -> CheckReport:
    """The items with their totals."""
    count = Counter(item.status for item in items)
    return CheckReport(passed=count["PASS"], warnings=count["WARNING"], failed=count["FAILED"], items=tuple(items))


def encode_report(report: CheckReport, max_bytes: int) -> bytes:
    """``report`` as compact JSON of at most ``max_bytes``; details are cut to one length when they must be."""
    whole = msgspec.json.encode(report)
    if len(whole) <= max_bytes:
        return whole
    lengths = range(_SHORTEST_DETAIL, max_bytes)
    too_long = bisect_right(lengths, max_bytes, key=lambda length: len(_encode_cut(report, length)))
    return _encode_cut(report, lengths[max(0, too_long - 1)])


def _encode_cut(report: CheckReport, length: int) -> bytes:
    items = tuple(
        msgspec.structs.replace(item, detail=item.detail[: length - len(_CUT)] + _CUT)
        if len(item.detail) > length
        else item
        for item in report.items
    )
    return msgspec.json.encode(msgspec.structs.replace(report, items=items))
