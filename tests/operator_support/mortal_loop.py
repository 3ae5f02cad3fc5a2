"""A control loop that dies at a given write: for it, the moments of a change are the objects that it writes."""

from __future__ import annotations

import os
from pathlib import Path

from operator_support.loop import Loop

VARIABLE = "BLADE_TEST_WRITES_LEFT"
_SITE = f"""
import os, signal

if path := os.environ.get({VARIABLE!r}):
    from blade_operator.cluster.local.store import Store

    def counted(write):
        def mortal(*args):
            result = write(*args)
            if os.path.exists(path):
                left = int(open(path).read()) - 1
                if left <= 0:
                    os.unlink(path)
                    os.kill(os.getpid(), signal.SIGKILL)
                with open(path, "w") as file:
                    file.write(str(left))
            return result

        return mortal

    Store._put, Store.remove = counted(Store._put), counted(Store.remove)
"""


def make_mortal(running: Loop) -> Path:
    """Have every control loop that is started from now on count its writes.

    Returns the file that says how many there are left: written by whoever wants it to die, gone once it has.
    """
    site = running.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    file = running.folder / "writes-left"
    paths = f"{site}{os.pathsep}{running.environment['PYTHONPATH']}"
    running.environment |= {"PYTHONPATH": paths, VARIABLE: str(file)}
    return file
