"""Read the JSON files beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blade_llm.text.errors import TokenizerFilesError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ``{}`` when there is no such file. Raises :class:`TokenizerFilesError`."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerFilesError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerFilesError(f"{path} must hold a JSON object")
    return value
