"""How many examples Hypothesis draws where they take long."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """``count`` in the long tests, which draw new ones each time; a half in the others, which draw the same."""
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "random" else count // 2
