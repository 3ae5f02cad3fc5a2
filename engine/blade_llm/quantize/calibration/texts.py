"""Texts to calibrate with: those of the command line, or of a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blade_llm.models.errors import ModelFilesError

_TEXT = "text"
_CONTENT = "content"
_SHOWN = 6


def given_texts(texts: Sequence[str]) -> list[str]:
    """Those of ``--calib_data``. Raises :class:`ModelFilesError` where all are empty."""
    found = [text for text in texts if text.strip()]
    if not found:
        raise ModelFilesError("--calib_data is empty; give texts like those that the model will see")
    if not all(map(_is_text, found)):
        raise ModelFilesError("--calib_data is not UTF-8 text")
    return found


def read_texts(path: Path) -> list[str]:
    """The texts of a file with a JSON object a line: ``{"text": "…"}``, or ``{"content": [{"text": "…"}, …]}``.

    Empty lines and empty texts are skipped. Raises :class:`ModelFilesError`, which names the line, for all that is
    something else, images among it, and for a file without texts; ``OSError``.
    """
    try:
        # Not splitlines(): JSON may have U+2028 and U+0085 in its strings as they are. A BOM is Windows'.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"--calib_data_file {path}: not UTF-8 text ({error.reason})") from None
    found = [text for text in _texts(path, lines) if text.strip()]
    if not found:
        raise ModelFilesError(
            f'--calib_data_file {path} has no texts; write lines like {{"text": "…"}}, 100 to 1,000 of them'
        )
    return found


def _texts(path: Path, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                text = _text_of(json.loads(line))
                if not _is_text(text):
                    raise ValueError("it has half of a pair of UTF-16 surrogates, which is no character")
                yield text
            except (ValueError, RecursionError) as error:
                why = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
                raise ModelFilesError(f"--calib_data_file {path}, line {number}: {why}") from None


def _is_text(text: str) -> bool:
    """Whether it has characters alone: JSON can escape half a character, and an argument of other bytes has some."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _text_of(entry: Any) -> str:
    if not isinstance(entry, dict):
        raise ValueError('not an object; write {"text": "…"}')
    if _TEXT in entry:
        text = entry[_TEXT]
        if not isinstance(text, str):
            raise ValueError(f'"text" is no text but {json.dumps(text)[:40]}')
        return text
    if _CONTENT in entry:
        return _text_of_content(entry[_CONTENT])
    columns = ", ".join(map(repr, list(entry)[:_SHOWN])) or "nothing"
    raise ValueError(f'it has {columns}; "text" is what is read: rename the column that holds the texts')


def _text_of_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError('"content" is no list of objects like {"text": "…"}')
    other = sorted({name for part in content for name in part if name in ("image", "video", "audio", "image_url")})
    if other:
        raise ValueError(
            f'its "content" has {", ".join(map(repr, other))}: models that see or hear cannot be quantised here yet; '
            "give texts alone"
        )
    texts = [part.get(_TEXT) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('a part of its "content" has no "text"')
    return "\n".join(map(str, texts))
