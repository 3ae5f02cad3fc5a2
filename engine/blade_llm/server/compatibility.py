"""The compatibility table: which route takes which field, from the types that requests are decoded with.

``python -m blade_llm.server.compatibility`` prints ``docs/compatibility.md``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from blade_llm.server.field_support import ignored_by, refused_by
from blade_llm.server.routes import ROUTES

_HEAD: Final = """# Compatibility

Which field of OpenAI's and vLLM's API does what here. Written by `python -m blade_llm.server.compatibility` from the
types that requests are decoded with; `/openapi.json` of a running server has types and ranges.

- **works**: as OpenAI or vLLM document it.
- **ignored**: may be sent and changes nothing.
- **refused**: a 400 that names the field, unless its value requests nothing.

Any other field is left out and listed in the response header `x-blade-ignored`, or refused under `--strict_fields`:
[api.md](api.md#unknown-fields).
"""


class Row(NamedTuple):
    """One field of one route."""

    route: str
    field: str
    status: str
    default: str
    note: str


def rows() -> Iterator[Row]:
    """All fields of all routes that read a body."""
    for route in ROUTES:
        if route.body is None:
            continue
        where = f"{route.method} {route.path}"
        notes = field_notes(route.body)
        known = msgspec.structs.fields(route.body)
        for field in known:
            yield Row(where, field.name, "works", _default(field), notes.get(field.name, ""))
        names = {field.name for field in known}
        for name, reason in ignored_by(route.body).items():
            if name not in names:
                yield Row(where, name, "ignored", "", reason)
        for name, refusal in refused_by(route.body).items():
            if name not in names:
                yield Row(where, name, "refused", "", refusal.reason)


def field_notes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The strings under a struct's fields, its bases' included."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner is msgspec.Struct or not issubclass(owner, msgspec.Struct):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for line, after in zip(tree.body, tree.body[1:], strict=False):
            match line, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(note))):
                    found[name] = " ".join(note.split())
    return found


def markdown() -> str:
    """The page."""
    lines = [_HEAD, "## Routes", "", "| route | |", "|---|---|"]
    lines += [f"| `{route.method} {route.path}` | {_summary(route.handler.__doc__)} |" for route in ROUTES]
    before = ""
    for row in rows():
        if row.route != before:
            before = row.route
            lines += ["", f"## {row.route}", "", "| field | | default | |", "|---|---|---|---|"]
        default = f"`{row.default}`" if row.default else ""
        note = row.note.replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{row.field}` | {row.status} | {default} | {note} |")
    return "\n".join(lines) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "" if value is None else msgspec.json.encode(value).decode()


def _summary(doc: str | None) -> str:
    first = (doc or "").partition("\n")[0].partition(" Raises")[0]
    return first.rstrip(".")


if __name__ == "__main__":
    print(markdown(), end="")
