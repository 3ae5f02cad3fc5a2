"""The documentation site: its navigation is the table of contents, and links to files outside docs/ have a target."""

from typing import Any

import pytest
from docs.site import hooks
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def leaves(entries: list[Any]) -> list[str]:
    """The paths of a navigation, in order."""
    found = []
    for entry in entries:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            found += leaves(value) if isinstance(value, list) else [value]
    return found


def test_the_table_of_contents_is_the_navigation() -> None:
    contents = (hooks.DOCS / "README.md").read_text()
    sections = {name: below for entry in hooks.navigation(contents)[1:] for name, below in entry.items()}
    assert list(sections) == ["Use", "Operate", "Understand", "Reference"]
    assert sections["Use"][0] == "llmservice.md"
    [decisions] = [entry["Decisions"] for entry in sections["Understand"] if isinstance(entry, dict)]
    assert decisions[0] == "decisions/0001-results-first.md"
    assert "repository/CHANGELOG.md" in sections["Reference"]
    pages = {path.relative_to(hooks.DOCS).as_posix() for path in hooks.DOCS.rglob("*.md")}
    assert pages - set(leaves(hooks.navigation(contents))) == set()


def test_a_section_does_not_go_on_below_the_next_heading() -> None:
    text = "## A\n\n### B\n\n| [b](b.md) | |\n\n## C\n\n| [c](c.md) | |\n"
    assert hooks.navigation(text)[1:] == [{"A": [{"B": ["b.md"]}]}, {"C": ["c.md"]}]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> MkDocsConfig:
    """As a build has it while it calls a hook."""
    config = load_config(str(hooks.ROOT / "mkdocs.yml"))
    monkeypatch.setattr(config.plugins, "_current_plugin", "hooks", raising=False)
    return config


@pytest.mark.parametrize(
    ("page", "target", "outside"),
    [
        ("lora.md", "../examples/lora.yaml", "examples/lora.yaml"),
        ("decisions/0001-results-first.md", "../../Makefile", "Makefile"),
        ("decisions/0001-results-first.md", "../lora.md", None),
        ("lora.md", "models.md", None),
        ("lora.md", "../examples/no-such-file.yaml", None),
        ("lora.md", "https://example.com/a", None),
    ],
)
def test_what_leaves_the_documentation(page: str, target: str, outside: str | None) -> None:
    assert hooks.outside_docs(page, target) == outside


def test_links_that_leave_lead_to_copies(config: MkDocsConfig) -> None:
    files = hooks.on_files(Files([File("lora.md", str(hooks.DOCS), str(config.site_dir), False)]), config)
    copy = files.get_file_from_path("repository/examples/lora.yaml.txt")
    assert copy is not None
    assert copy.content_string == (hooks.ROOT / "examples/lora.yaml").read_text()
    page = Page(None, files.documentation_pages()[0], config)
    text = "See [one](../examples/lora.yaml), [two](models.md).\n\n```\n[three](../examples/lora.yaml)\n```\n"
    expected = (
        "See [one](repository/examples/lora.yaml.txt), [two](models.md).\n\n```\n[three](../examples/lora.yaml)\n```\n"
    )
    assert hooks.on_page_markdown(text, page, config, files) == expected


def test_a_copied_page_links_the_documentation(config: MkDocsConfig) -> None:
    copy = File.generated(config, "repository/charts/bladellm/README.md", content="")
    page = Page(None, copy, config)
    text = hooks.on_page_markdown("[install](../../docs/install.md#permissions)", page, config, Files([copy]))
    assert text == "[install](../../../install.md#permissions)"
