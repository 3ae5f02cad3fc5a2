"""What a compiled module would do otherwise than its source, found in the source: mypyc says nothing of any of it.

Each of these was seen to crash, to hang or to raise another error with mypyc 2.4.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_SUSPENDS: Final = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
_BUILTIN_ERRORS: Final = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
_EXITS_AT_ONCE: Final = frozenset(("asyncio.timeout", "self._refreshing"))
"""Asynchronous context managers that never wait on leaving: a call by its name, and a lock."""

Bases = Mapping[str, Iterable[str]]
"""Names of the parents of each class, modules left out."""


def bases(tree: ast.Module) -> dict[str, list[str]]:
    """Names of the parents of each class of a module."""
    return {
        node.name: [ast.unparse(each).rpartition(".")[2] for each in node.bases]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def lost(tree: ast.Module, known: Bases) -> list[str]:
    """What mypyc does not know, or drops without a word: such a module has to stay interpreted.

    Args:
        known: parents of the classes of all modules.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.keywords:
            found.append(f"{node.lineno}: {node.name} has options, which get lost")
        if isinstance(node, ast.ClassDef) and _has_defaults(node) and is_error(node.name, known):
            found.append(f"{node.lineno}: {node.name} is an error whose attributes lose their defaults")
        if isinstance(node, ast.AsyncFunctionDef) and any(isinstance(each, ast.Yield) for each in ast.walk(node)):
            found.append(f"{node.lineno}: {node.name} is an asynchronous generator")
    return found


def is_error(name: str, known: Bases) -> bool:
    """A class of this name is an exception."""
    parents = known.get(name, ())
    if not parents:
        return name in _BUILTIN_ERRORS or name.endswith(("Error", "Exception"))
    return any(each != name and is_error(each, known) for each in parents)


def _has_defaults(node: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.Assign) or (isinstance(each, ast.AnnAssign) and each.value is not None)
        for each in node.body
    )


def hazards(tree: ast.Module) -> list[str]:
    """What must be written in another way: ``LINE: what it is``.

    A compiled coroutine leaves the error that it handles in the thread's state while it is suspended. Whoever runs
    meanwhile sees it, and takes it away: raising it again then crashes. So nothing is awaited in ``except`` or
    ``finally``, nor on leaving ``async with``; where a ``finally`` waits, an error of a caller is raised again, too.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            for where, body in (("except", node.handlers), ("finally", node.finalbody)):
                found += [f"{line}: waits in '{where}'; wait behind it" for line in _suspended(body)]
        elif isinstance(node, ast.AsyncWith):
            found += [
                f"{node.lineno}: leaving '{ast.unparse(item.context_expr)}' may wait while an error is handled"
                for item in node.items
                if not _exits_at_once(item.context_expr)
            ]
        elif isinstance(node, ast.AsyncFunctionDef):
            found += [
                f"{node.lineno}: {node.name} catches different errors as {name!r}, which has one type"
                for name in _names_of_several_errors(node)
            ]
    return found


def heirs(interpreted: Iterable[ast.Module], compiled: Iterable[ast.Module]) -> list[str]:
    """Interpreted classes with a compiled parent that does not allow it: making an instance would be a TypeError."""
    closed = {
        node.name
        for tree in compiled
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and "Protocol" not in map(ast.unparse, node.bases)
        and not any("allow_interpreted_subclasses" in ast.unparse(each) for each in node.decorator_list)
    }
    return [
        f"{name} is interpreted, and its parent {parent} compiled"
        for tree in interpreted
        for name, parents in bases(tree).items()
        for parent in parents
        if parent in closed
    ]


def _suspended(body: Iterable[ast.AST]) -> Iterator[int]:
    for part in body:
        yield from (each.lineno for each in ast.walk(part) if isinstance(each, _SUSPENDS))


def _exits_at_once(manager: ast.expr) -> bool:
    return ast.unparse(manager.func if isinstance(manager, ast.Call) else manager) in _EXITS_AT_ONCE


def _names_of_several_errors(function: ast.AsyncFunctionDef) -> list[str]:
    """mypyc gives a name one type in a coroutine: the second error under it would be a TypeError."""
    kinds: dict[str, set[str]] = {}
    for each in ast.walk(function):
        if isinstance(each, ast.ExceptHandler) and each.name and each.type is not None:
            kinds.setdefault(each.name, set()).add(ast.unparse(each.type))
    return [name for name, types in kinds.items() if len(types) > 1]
