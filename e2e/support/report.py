"""What a pytest run amounted to: in CI a skipped end-to-end test is a failure, and so is none at all."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Report:
    """Counts of a JUnit report, and the names of what was skipped."""

    tests: int
    skipped: tuple[str, ...]


def read(path: Path) -> Report:
    """A missing or broken file (pytest did not get that far) is a report of no tests."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Report(0, ())
    skipped = [case for case in cases if case.find("skipped") is not None]
    return Report(len(cases), tuple(f"{case.get('classname')}::{case.get('name')}" for case in skipped))


def exit_code(pytest_code: int, report: Report, *, ci: bool) -> int:
    """pytest's own, but in CI 1 when tests were skipped or none ran."""
    if pytest_code == 0 and ci and (report.skipped or report.tests == 0):
        return 1
    return pytest_code
