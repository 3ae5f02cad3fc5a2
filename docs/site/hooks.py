"""What MkDocs is told of this repository's pages: their order, and the files outside docs/ that they link.

The table of contents in docs/README.md is the navigation. A link to a file of the repository (`../examples/lora.yaml`)
leads to a copy of it in the site: Markdown as a page, everything else as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "repository"
"""The site's folder of files from outside docs/."""
_FENCE: Final = re.compile(r"^([ \t]*)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()([^)#\s]+)")
_HEADING: Final = re.compile(r"^(##+) (.+)$")
_ROW: Final = re.compile(r"^\| \[[^\]]+\]\(([^)]+)\) \|")

Navigation = list[Any]
"""Paths, and sections: a dictionary of one name and what is below it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, before MkDocs looks for pages."""
    config.nav = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files of the repository that pages link become files of the site."""
    for page in [file for file in files if file.is_documentation_page()]:
        text = (DOCS / page.src_uri).read_text(encoding="utf-8")
        for target in map(str, _LINK.findall(_FENCE.sub("", text))):
            outside = outside_docs(page.src_uri, target)
            if outside is None or files.get_file_from_path(site_path(outside)) is not None:
                continue
            files.append(_generated(config, outside))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ lead to the site's copies."""
    here = page.file.src_uri
    if here.startswith(f"{REPOSITORY}/"):
        return _links_of_a_copy(markdown, here)

    def target(match: re.Match[str]) -> str:
        outside = outside_docs(here, match[1])
        return match[1] if outside is None else posixpath.relpath(site_path(outside), posixpath.dirname(here) or ".")

    return _outside_fences(markdown, target)


def navigation(contents: str) -> Navigation:
    """The tables of contents as MkDocs' ``nav``: a section a heading, one below another where the headings are."""
    result: Navigation = [{"Contents": "README.md"}]
    sections: dict[int, Navigation] = {1: result}
    for line in contents.splitlines():
        if heading := _HEADING.match(line):
            depth = len(heading[1])
            sections = {above: found for above, found in sections.items() if above < depth} | {depth: []}
            sections[depth - 1].append({heading[2]: sections[depth]})
        elif row := _ROW.match(line):
            outside = outside_docs("README.md", row[1])
            path = row[1] if outside is None else site_path(outside)
            sections[max(sections)].append({_title(path): _folder(path)} if path.endswith("/README.md") else path)
    return result


def _folder(readme: str) -> Navigation:
    """A folder's contents, then its pages; a folder from outside docs/ has its README alone."""
    found = sorted((DOCS / readme).parent.glob("*.md"))
    return [readme, *(path.relative_to(DOCS).as_posix() for path in found if path.name != "README.md")]


def _title(readme: str) -> str:
    return readme.split("/")[-2].capitalize()


def outside_docs(page: str, target: str) -> str | None:
    """The path in the repository of what a page (a path in docs/) links, where that is not in docs/; else None."""
    if re.match(r"[a-z]+:", target) or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith(("docs/", "..")) or not (ROOT / path).exists() else path


def site_path(path: str) -> str:
    """Where the site has a file of the repository; a folder is a page that lists it."""
    file = ROOT / path
    if file.is_dir():
        return f"{REPOSITORY}/{path}/index.md"
    return f"{REPOSITORY}/{path}" + ("" if file.suffix == ".md" else ".txt")


def _generated(config: MkDocsConfig, path: str) -> File:
    file = ROOT / path
    if not file.is_dir():
        return File.generated(config, site_path(path), abs_src_path=str(file))
    names = sorted(each.name for each in file.iterdir() if not each.name.startswith(("__", ".")))
    return File.generated(config, site_path(path), content="\n".join([f"# {path}\n", *(f"- `{n}`" for n in names)]))


def _links_of_a_copy(markdown: str, here: str) -> str:
    """A copied page's links: to docs/ they become the site's, to other files of the repository plain text."""
    folder = posixpath.dirname(here).removeprefix(REPOSITORY).lstrip("/")

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if not path.startswith("docs/"):
            return match[1]
        return posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(here))

    return _outside_fences(markdown, target)


def _outside_fences(markdown: str, target: Callable[[re.Match[str]], str]) -> str:
    """``target`` replaces the links of a text, those in blocks of code excepted."""
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(target, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(target, markdown[end:])])
