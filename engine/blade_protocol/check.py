"""The report that ``blade_llm_check`` writes as its termination message; the operator copies it into the status."""

from typing import Literal

import msgspec

CheckStatus = Literal["PASS", "WARNING", "FAILED"]


class CheckItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    name: str
    status: CheckStatus
    detail: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report; at most 4,096 bytes as JSON (details are cut, never items or totals)."""

    passed: int
    warnings: int
    failed: int
    items: tuple[CheckItem, ...]
