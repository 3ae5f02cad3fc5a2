"""Everybody attacks at once, and one tenant only wants its answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_tenant_is_served_as_in_calm_while_everybody_attacks() -> None:
    """The benchmark's row, with its targets: time to the first token, errors, and the router's memory."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.router"],
        cwd=ROOT,
        env=os.environ | {"ROWS": "flood", "PEERS": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
