"""How commands that write a folder end when they fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from blade_llm.cli.byte_progress import Failure, end_with
from blade_llm.models.errors import ModelFilesError

GOES_ON = "; what is complete is kept, the same command continues"


@pytest.mark.parametrize(
    ("failure", "code", "said", "may_help"),
    [
        (ModelFilesError("it is damaged"), 1, "it is damaged", False),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "no space left for /out", True),
        (OSError(errno.EACCES, "Permission denied", "/out"), 1, "[Errno 13] Permission denied: '/out'", True),
        (KeyboardInterrupt(), 130, "stopped", True),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_one_line_says_why(
    failure: Failure, code: int, said: str, may_help: bool, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_with("blade_llm_split", failure, Path("/out"), kept=kept) == code
    after = GOES_ON if kept and may_help else ""
    assert capsys.readouterr().err == f"blade_llm_split: {said}{after}\n"
