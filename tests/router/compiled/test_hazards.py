"""Sources that mypyc would compile to something else are found."""

import ast
from pathlib import Path

import pytest

from blade_router.compiled import build
from blade_router.compiled.build import BuildError
from blade_router.compiled.hazards import bases, hazards, heirs, lost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A(Struct):\n    a: int = 1", 0),
        ("class A(Struct, frozen=True):\n    a: int", 1),
        ("class A(Error):\n    pass", 0),
        ("class A(Error):\n    reason = 'a'", 1),
        ("class A(Error):\n    reason: str", 0),
        ("class B(Exception):\n    pass\nclass A(B):\n    reason: str = 'a'", 1),
        ("class A(asyncio.CancelledError):\n    reason = 'a'", 1),
        ("async def f():\n    yield 1", 1),
        ("async def f():\n    await g()\ndef h():\n    yield 1", 0),
    ],
)
def test_what_gets_lost_stays_interpreted(text: str, expected: int) -> None:
    tree = ast.parse(text)
    assert len(lost(tree, bases(tree))) == expected


TRY = "async def f():\n    try:\n        {}\n    except E as e:\n        {}\n    finally:\n        {}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRY.format("await a", "b", "c"), 0),
        (TRY.format("a", "await b", "c"), 1),
        (TRY.format("a", "b", "await c"), 1),
        (TRY.format("a", "b", "async with asyncio.timeout(1): c"), 1),
        (TRY.format("a", "b", "async for each in d: c"), 1),
        ("def f():\n    try:\n        yield 1\n    except E:\n        yield 2", 1),
        ("async def f():\n    async with asyncio.timeout(1):\n        await a", 0),
        ("async def f():\n    with endpoints.attempt(1) as attempt:\n        await a", 0),
        ("async def f():\n    async with a_manager():\n        await a", 1),
        ("async def f():\n    try: a\n    except E as e: b\n    try: a\n    except F as e: b", 1),
        ("async def f():\n    try: a\n    except E as e: b\n    try: a\n    except E as e: b", 0),
    ],
)
def test_what_would_crash_is_found(text: str, expected: int) -> None:
    assert len(hazards(ast.parse(text))) == expected


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ("class A(Exception): pass", 1),
        ("@mypyc_attr(allow_interpreted_subclasses=True)\nclass A: pass", 0),
        ("class A(Protocol): pass", 0),
    ],
)
def test_an_interpreted_class_with_a_compiled_parent_is_found(parent: str, expected: int) -> None:
    child = ast.parse("class B(errors.A):\n    reason = 'a'")
    assert len(heirs([child], [ast.parse(parent)])) == expected


def test_the_hot_path_has_none() -> None:
    build.refuse_hazards()


def test_a_source_with_one_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.py"
    source.write_text(TRY.format("a", "await b", "c"))
    monkeypatch.setattr(build, "hot_sources", lambda: [source])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=r"source\.py:5: waits in 'except'; wait behind it"):
        build.build()
