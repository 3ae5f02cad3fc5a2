"""File descriptors: the limit is raised where it may be, and what is kept open is a share of it."""

import resource
import subprocess
import sys

import pytest

from blade_operator.descriptors import affordable


@pytest.mark.parametrize(("soft", "expected"), [(1000, 250), (100_000, 4096), (resource.RLIM_INFINITY, 4096), (0, 0)])
def test_connections_are_a_share_of_the_limit(soft: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert affordable(4096, 0.25) == expected


def test_the_soft_limit_of_a_process_is_raised_to_its_hard_one() -> None:
    program = (
        "import resource; from blade_operator.descriptors import raise_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500)); raise_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["500", "500"]
