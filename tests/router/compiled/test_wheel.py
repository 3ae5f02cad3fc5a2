"""What the wheel's build hook puts into the wheel; hatchling itself is not needed for that."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from blade_router.compiled import build
from blade_router.compiled.sources import SWITCH

ROOT = Path(__file__).resolve().parents[3]
T = TypeVar("T")


class Interface(Generic[T]):
    """hatchling's, as far as the hook uses it."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook, with a build that has made two modules."""
    module = ModuleType("hatchling.builders.hooks.plugin.interface")
    module.BuildHookInterface = Interface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hatch_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hatch_build)
    monkeypatch.setattr(build, "compiler", lambda: "/usr/bin/cc")
    monkeypatch.delenv(SWITCH, raising=False)
    return hatch_build.CompiledRouter()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "0f-cpython-311"
    folder.mkdir()
    for name in ("a.so", "b.so"):
        (folder / name).touch()
    monkeypatch.setattr(build, "build", lambda: folder)
    return folder


def data() -> dict[str, Any]:
    return {"pure_python": True, "infer_tag": False, "force_include": {}}


@pytest.mark.parametrize("switch", ["1", None])
def test_compiled_modules_make_a_wheel_for_this_platform(
    switch: str | None, hook: Any, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    build_data = data()
    hook.initialize("standard", build_data)
    modules = {str(made / name): f"blade_router/compiled/modules/0f-cpython-311/{name}" for name in ("a.so", "b.so")}
    assert build_data == {"pure_python": False, "infer_tag": True, "force_include": modules}
    assert any(each.startswith("mypy") for each in hook.dependencies())
    assert hook.warnings == []


def test_switched_off_the_wheel_is_pure(hook: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    build_data = data()
    hook.initialize("standard", build_data)
    assert (build_data, hook.dependencies()) == (data(), [])


def test_an_editable_installation_compiles_nothing(hook: Any, made: Path) -> None:
    build_data = data()
    hook.initialize("editable", build_data)
    assert build_data == data()


def test_a_failed_build_makes_a_pure_wheel_and_says_why(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build", _fail)
    build_data = data()
    hook.initialize("standard", build_data)
    assert build_data == data()
    assert hook.warnings == ["the router's hot path stays interpreted in this wheel: mypy says no"]


def test_without_a_compiler_nothing_more_is_installed_for_the_build(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert hook.dependencies() == []


def test_without_mypy_the_wheel_is_pure(hook: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    build_data = data()
    hook.initialize("standard", build_data)
    assert build_data == data()
    assert "mypy is not installed" in hook.warnings[0]


def test_a_failed_build_fails_where_it_must_be_compiled(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build", _fail)
    monkeypatch.setenv(SWITCH, "1")
    with pytest.raises(build.BuildError, match="mypy says no"):
        hook.initialize("standard", data())


def _fail() -> Path:
    raise build.BuildError("mypy says no")
