"""Paragraphs of running text out of HTML pages and Perl's POD; code, tables and headings are left out."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

SHORTEST: Final = 60
"""Characters of a paragraph: shorter ones are labels and lines of menus."""
LETTERS: Final = 0.7
"""The share of a paragraph's characters that are letters: with fewer it is code or a listing."""
_BLOCKS: Final = {"p", "div", "li", "dd", "dt", "td", "pre", "h1", "h2", "h3", "h4", "section", "table"}
_POD_CODE: Final = re.compile(r"[A-Z](?:<([^<>]*)>|<<+\s(.*?)\s>>+)")


class _Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._text: list[str] | None = None
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self._end()
        self._preformatted += tag == "pre"
        if tag == "p" and not self._preformatted:
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end()
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        if self._text is not None:
            self.found.append("".join(self._text))
        self._text = None


def html_paragraphs(page: str) -> list[str]:
    """The prose of a page's ``<p>`` elements, white space collapsed."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return _prose(parser.found)


def pod_paragraphs(page: str) -> list[str]:
    """The prose of a POD file: neither commands nor verbatim paragraphs, formatting codes replaced by their text."""
    page = re.sub(r"^=(begin|for)\b.*?^=(end|cut)\b[^\n]*$", "", page, flags=re.MULTILINE | re.DOTALL)
    found = [each for each in re.split(r"\n\s*\n", page) if each[:1] not in (" ", "\t", "=", "")]
    return _prose([_without_codes(each) for each in found])


def plain_paragraphs(page: str) -> list[str]:
    """The prose of a text file, whose paragraphs are apart by an empty line."""
    return _prose(re.split(r"\n\s*\n", page))


def _without_codes(text: str) -> str:
    """``C<print>`` becomes ``print``, from the innermost outwards; entries for the index vanish."""
    text = re.sub(r"X<[^<>]*>", "", text)
    while (simpler := _POD_CODE.sub(lambda code: _shown(code.group(1) or code.group(2) or ""), text)) != text:
        text = simpler
    return text


def _shown(inside: str) -> str:
    """What a reader sees of a link ``text|target``, and of anything else."""
    return inside.partition("|")[0]


def _prose(paragraphs: list[str]) -> list[str]:
    collapsed = (" ".join(each.split()) for each in paragraphs)
    return [each for each in collapsed if len(each) >= SHORTEST and _letters(each) >= LETTERS]


def _letters(text: str) -> float:
    return sum(map(str.isalpha, text)) / len(text)
