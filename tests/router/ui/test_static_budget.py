"""The web UI's build, as it is committed: small, whole, and content with a strict security policy and no other host."""

import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import blade_router

STATIC = Path(blade_router.__file__).parent / "ui" / "static"
BUDGET = 150 * 1024

# Names in the code that nothing is requested from: XML namespaces, and what libraries' messages point to
NAMES = re.compile(
    r"https?://(www\.w3\.org/(1999|2000|1998)/[\w/]+|(github\.com|marked\.js\.org|127\.0\.0\.1|localhost)\b[\w./#:-]*)"
)


def files(*suffixes: str) -> list[Path]:
    found = sorted(path for path in STATIC.rglob("*") if path.suffix in suffixes)
    assert found, f"there is no build in {STATIC}: make ui"
    return found


class Page(HTMLParser):
    """What a page holds inline, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.within = tag
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}={value}")
            if name in {"src", "href"} and value:
                self.loads.append(value)

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within in {"script", "style"} and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def page() -> Page:
    page = Page()
    page.feed((STATIC / "index.html").read_text())
    return page


def test_all_of_it_compressed_is_within_the_budget() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in files(".html", ".js", ".css")}
    assert sum(sizes.values()) <= BUDGET, sizes


def test_nothing_is_inline(page: Page) -> None:
    assert page.inline == []


def test_what_it_loads_is_there_and_named_by_its_content(page: Page) -> None:
    assert any(path.endswith(".js") for path in page.loads)
    assert any(path.endswith(".css") for path in page.loads)
    for path in page.loads:
        assert re.fullmatch(r"/ui/assets/[\w.]+-[\w-]{8}\.\w+", path), path
        assert (STATIC / path.removeprefix("/ui/")).is_file(), path


def test_nothing_is_fetched_from_another_host() -> None:
    for path in files(".html", ".js", ".css", ".svg"):
        left = NAMES.sub("", path.read_text())
        assert re.findall(r"https?://[\w.-]+\.\w+[^\s\"'`]*", left) == [], path.name
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", left), path.name


def test_no_code_is_made_of_text() -> None:
    for path in files(".js"):
        assert not re.search(r"\beval\(|\bnew Function\(", path.read_text()), path.name
