"""Compiled modules are used for the sources they were made of, and for no others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from router_support.compiled import imported

from blade_router.compiled import sources
from blade_router.compiled.build import BuildError, build, compilable, compiler
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
    for each in (folder, folder.parent):
        each.chmod(0o700)
    (folder / f"{LIBRARY}{SUFFIX}").touch()
    return folder


def test_modules_of_these_sources_are_found(empty_cache: Path) -> None:
    assert find() is None
    folder = pretend_to_compile()
    assert find() == folder


@pytest.mark.parametrize("edited", ["blade_router/policies/auto.py", "blade_protocol/limits.py"])
def test_an_edited_source_is_never_shadowed(
    edited: str, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that stays interpreted: its constants are in the compiled ones."""
    copies = [shutil.copytree(package, tmp_path / "copy" / package.name) for package in sources.packages()]
    monkeypatch.setattr(sources, "packages", lambda: copies)
    pretend_to_compile()
    assert find() is not None
    with (tmp_path / "copy" / edited).open("a") as file:
        file.write("\n# edited\n")
    assert find() is None


def test_a_wheel_is_built_of_the_sources_that_were_compiled() -> None:
    """Where nothing is installed, as in the build of a wheel."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); from blade_router.compiled import sources as s; "
    program += "print(s.folder_name(), len(s.packages()))"
    router = str(Path(sources.__file__).resolve().parents[2])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", program, router]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert done.stdout.split() == [folder_name(), "2"], done.stderr


def test_what_others_can_write_to_is_not_loaded(empty_cache: Path) -> None:
    folder = pretend_to_compile()
    for each in (folder, folder.parent):
        each.chmod(0o777)
        assert find() is None
        each.chmod(0o700)
    assert find() == folder


def test_a_user_without_a_home_has_no_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert find() is None
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        build()


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
