"""Compiled modules are used for the sources they were made of, and for no others."""

import os
from pathlib import Path

import pytest
from router_support.compiled import imported

from blade_router.compiled import sources
from blade_router.compiled.build import compilable, compiler
from blade_router.compiled.sources import LIBRARY, SUFFIX, SWITCH, cache, find, folder_name, hot_sources

HOT = (
    *("http.connection", "http.request_reader", "http.upstream.connection", "http.client", "request.request"),
    *("endpoints.endpoint_set", "policies.auto", "policies.prefix_cache.prefix_index", "proxy.proxy", "proxy.relay"),
    *("resume.stream", "observability.metrics", "admission.controller"),
)
"""Modules without which the hot path is not compiled."""
PRINT_FILES = (
    f"import importlib, sys\nfor name in {HOT}: print(importlib.import_module('blade_router.' + name).__file__)"
)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def pretend_to_compile() -> Path:
    """An empty library for the sources as they are."""
    folder = cache() / folder_name()
    folder.mkdir(parents=True)
    (folder / f"{LIBRARY}{SUFFIX}").touch()
    return folder


def test_modules_of_these_sources_are_found(empty_cache: Path) -> None:
    assert find() is None
    folder = pretend_to_compile()
    assert find() == folder


def test_an_edited_source_is_never_shadowed(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = hot_sources()[0]
    copy = tmp_path / edited.name
    copy.write_bytes(edited.read_bytes())
    names = {copy: sources.module_name(edited)}
    of = sources.module_name
    monkeypatch.setattr(sources, "hot_sources", lambda: [copy, *hot_sources()[1:]])
    monkeypatch.setattr(sources, "module_name", lambda source: names.get(source) or of(source))
    pretend_to_compile()
    assert find() is not None
    copy.write_bytes(copy.read_bytes() + b"\n# edited\n")
    assert find() is None


@pytest.mark.parametrize(("broken", "why"), [(False, "were not compiled for this Python"), (True, "file too short")])
def test_without_compiled_modules_that_load_the_sources_run(broken: bool, why: str, empty_cache: Path) -> None:
    if broken:
        pretend_to_compile()
    done = imported("", PRINT_FILES + "\nfrom blade_router.compiled.finder import form\nprint(form(), file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    assert all(file.endswith(".py") for file in done.stdout.split())
    assert done.stderr.startswith("interpreted (")
    assert why in done.stderr


def test_it_is_an_error_where_they_must_be_there(empty_cache: Path) -> None:
    done = imported("1", PRINT_FILES)
    assert done.returncode == 1
    assert "python -m blade_router.compiled does that" in done.stderr


def test_switched_off_the_sources_run_though_they_are_compiled() -> None:
    assert all(file.endswith(".py") for file in imported("0", PRINT_FILES).stdout.split())


@pytest.mark.parametrize("switch", ["1", ""])
def test_the_hot_path_is_compiled_as_a_whole(switch: str) -> None:
    if find() is None and os.environ[SWITCH] != "1":
        pytest.skip("make compiled makes what this looks at")
    done = imported(switch, PRINT_FILES)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(HOT)
    assert all(file.endswith(".so") for file in done.stdout.split())


def test_every_module_of_the_hot_path_can_be_compiled() -> None:
    names = {sources.module_name(source): source for source in hot_sources()}
    assert [name for name in HOT if not compilable(names[f"blade_router.{name}"])] == []


def test_without_headers_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    assert compiler() is None


def test_without_a_compiler_it_says_so_in_one_line_and_fails_not(empty_cache: Path) -> None:
    program = (
        "import sys, sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\nsys.argv = ['compiled']\n"
        "from blade_router.compiled.__main__ import main\nmain()"
    )
    done = imported("", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout == "the router's hot path stays interpreted: there is no C compiler with Python's headers (gcc)\n"
    )
