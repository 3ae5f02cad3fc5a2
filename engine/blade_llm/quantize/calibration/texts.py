"""Texts to calibrate with: those of the command line, or of a file of JSON lines, which may have images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from blade_llm.models.errors import ModelFilesError

_TEXT: Final = "text"
_CONTENT: Final = "content"
_IMAGE: Final = "image"
_OTHERS: Final = ("audio", "image_url", "video", "video_url")
_SHOWN: Final = 6
Part = tuple[Literal["text", "image"], str]


@dataclass(frozen=True, slots=True)
class IllustratedText:
    """Texts and images, as a user sends them to a model that sees."""

    parts: tuple[Part, ...]
    """In order; of an image its URL: ``https:``, ``data:``, or ``file:`` for what lies in :attr:`folder`."""
    folder: Path
    """The folder of the file that it is of, absolute."""
    where: str
    """Its place, for errors."""


CalibrationText = str | IllustratedText


def given_texts(texts: Sequence[str]) -> list[str]:
    """Those of ``--calib_data``. Raises :class:`ModelFilesError` where all are empty."""
    found = [text for text in texts if text.strip()]
    if not found:
        raise ModelFilesError("--calib_data is empty; give texts like those that the model will see")
    if not all(map(_is_text, found)):
        raise ModelFilesError("--calib_data is not UTF-8 text")
    return found


def read_texts(path: Path) -> list[CalibrationText]:
    """The texts of a file with a JSON object a line: ``{"text": "…"}``, or ``{"content": [{"text": "…"}, …]}``, where
    ``{"image": "…"}`` is an image's URL, or the path of one, relative to the file's folder.

    Empty lines and empty texts are skipped. Raises :class:`ModelFilesError`, which names the line, for all that is
    something else, and for a file without texts; ``OSError``.
    """
    try:
        # Not splitlines(): JSON may have U+2028 and U+0085 in its strings as they are. A BOM is Windows'.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"--calib_data_file {path}: not UTF-8 text ({error.reason})") from None
    found = [text for text in _texts(path, lines) if not isinstance(text, str) or text.strip()]
    if not found:
        raise ModelFilesError(
            f'--calib_data_file {path} has no texts; write lines like {{"text": "…"}}, 100 to 1,000 of them'
        )
    return found


def _texts(path: Path, lines: Sequence[str]) -> Iterator[CalibrationText]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"--calib_data_file {path}, line {number}"
            try:
                parts = _parts_of(json.loads(line))
                if not all(_is_text(text) for _, text in parts):
                    raise ValueError("it has half of a pair of UTF-16 surrogates, which is no character")
            except (ValueError, RecursionError) as error:
                why = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
                raise ModelFilesError(f"{where}: {why}") from None
            if any(kind == _IMAGE for kind, _ in parts):
                folder = path.absolute().parent
                yield IllustratedText(tuple(_with_url(part, folder) for part in parts), folder, where)
            else:
                yield "\n".join(text for _, text in parts)


def _is_text(text: str) -> bool:
    """Whether it has characters alone: JSON can escape half a character, and an argument of other bytes has some."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _parts_of(entry: Any) -> list[Part]:
    if not isinstance(entry, dict):
        raise ValueError('not an object; write {"text": "…"}')
    if _TEXT in entry:
        text = entry[_TEXT]
        if not isinstance(text, str):
            raise ValueError(f'"text" is no text but {json.dumps(text)[:40]}')
        return [("text", text)]
    if _CONTENT in entry:
        content = entry[_CONTENT]
        if isinstance(content, str):
            return [("text", content)]
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise ValueError('"content" is no list of objects like {"text": "…"}')
        return [_part_of(part) for part in content]
    columns = ", ".join(map(repr, list(entry)[:_SHOWN])) or "nothing"
    raise ValueError(f'it has {columns}; "text" is what is read: rename the column that holds the texts')


def _part_of(part: dict[str, Any]) -> Part:
    for other in _OTHERS:
        if other in part:
            raise ValueError(f'its "content" has {other!r}; give {{"text": "…"}} and {{"image": "URL or path"}}')
    image, text = part.get(_IMAGE), part.get(_TEXT)
    if isinstance(image, str) and image and text is None:
        return "image", image
    if _IMAGE in part:
        raise ValueError('a part of its "content" has an "image" that is no URL and no path, or a "text" beside it')
    if not isinstance(text, str):
        raise ValueError('a part of its "content" has no "text"')
    return "text", text


def _with_url(part: Part, folder: Path) -> Part:
    """With a ``file:`` URL in place of a path."""
    kind, value = part
    if kind == "text" or re.match(r"(?:https?|data|file):", value, re.IGNORECASE):
        return part
    return kind, (folder / value).as_uri()
