"""Every link and every repository path in the documentation exists, and its table of contents names all pages."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "charts/bladellm/README.md", *sorted(DOCS.rglob("*.md"))]
FOLDERS = [
    "engine",
    "router",
    "operator",
    "tests",
    "e2e",
    "benchmarks",
    "charts",
    "crds",
    "examples",
    "docs",
    "monitoring",
]
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)}|blade_\w+)(?:/[\w.-]+)+/?|[\w./-]+\.py")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: dict[str, int] = {}
    result = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = found.get(anchor, 0)
        found[anchor] = count + 1
        result.add(f"{anchor}-{count}" if count else anchor)
    return result


def repository_paths(page: Path) -> list[str]:
    """Back-ticked paths below one of the repository's folders, and names of Python files."""
    return [code for code in CODE.findall(prose(page)) if PATH.fullmatch(code)]


def modules(page: Path) -> list[str]:
    """What `python -m` is said to run, as the path of a module or of a package."""
    return [name.rstrip(".").replace(".", "/") for name in re.findall(r"python -m ([\w.]+)", prose(page))]


@functools.cache
def tree() -> frozenset[str]:
    """Every file and folder of the repository, each by every tail of its path: `engine/core.py` and `core.py` too."""
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            if "__pycache__" not in parts:
                found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


def exists(path: str) -> bool:
    return path.rstrip("/") in tree()


def defined(dotted: str) -> bool:
    """Whether `blade_llm.config.EngineConfig` and the like are a module, or a name that a module has."""
    package, *rest = dotted.split(".")
    path = next(ROOT.glob(f"*/{package}"))
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    module = path / f"{rest[0]}.py" if rest else path
    if rest and module.exists():
        rest.pop(0)
    else:
        module = path / "__init__.py"
    return all(re.search(rf"\b{name}\b", module.read_text()) for name in rest)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_exist(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_repository_paths_and_names_exist(page: Path) -> None:
    assert [path for path in repository_paths(page) if not exists(path)] == []
    names = [code for code in CODE.findall(prose(page)) if re.fullmatch(r"blade_\w+(\.\w+)+", code)]
    assert [name for name in names if not defined(name)] == []
    assert [name for name in modules(page) if not exists(f"{name}.py") and not exists(f"{name}/__main__.py")] == []


def contents(page: Path) -> set[Path]:
    """What a table of contents links, and what those tables of contents link that it links."""
    linked = {(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(page.read_text())}
    return linked.union(
        *(contents(each) for each in linked if each.name == "README.md" and page.parent in each.parents)
    )


def test_the_table_of_contents_links_every_page() -> None:
    linked = contents(DOCS / "README.md")
    assert [named(page) for page in DOCS.rglob("*.md") if page.name != "README.md" and page not in linked] == []


def test_the_checks_find_what_is_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    lines = ["# A `title`, twice", "`router/no_such.py` `blade_llm/llm.py` `a/b`", "## A title, twice"]
    page.write_text("\n\n".join([*lines, "Run `python -m benchmarks.gpu`."]))
    assert anchors(page) == {"a-title-twice", "a-title-twice-1"}
    assert [exists(path) for path in repository_paths(page)] == [False, True]
    assert modules(page) == ["benchmarks/gpu"]
    assert defined("blade_llm.config.EngineConfig")
    assert defined("blade_llm.LLM")
    assert not defined("blade_llm.config.NoSuchName")
    assert not defined("blade_llm.no_such_module")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 700
