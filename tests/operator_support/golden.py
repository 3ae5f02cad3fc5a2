"""Golden files: the full rendering of one case, and for every other case its difference from that one.

A difference is a unified diff, which patch(1) understands, too. The heading of each hunk names the object and the
fields that enclose its first changed line, so that a reviewer can read it without the full rendering. Base and
difference determine every byte of a case.

``UPDATE_GOLDEN=1 pytest tests/operator/render/test_rendered_objects.py`` writes the files anew.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from blade_operator.model.objects import Object
from operator_support.rendering import render_case

FOLDER = Path(__file__).parents[1] / "operator" / "render" / "golden"
BASE = "file_model"
"""The case with a full rendering."""
CONTEXT = 1
"""Unchanged lines around each change."""
Opcode = tuple[str, int, int, int, int]
"""An operation of `difflib.SequenceMatcher`."""
_HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")


def path(case: str) -> Path:
    """The golden file of ``case``."""
    return FOLDER / (f"{case}.yaml" if case == BASE else f"{case}.diff")


def rendered(case: str) -> str:
    """The objects that the operator renders for ``case``, as YAML."""
    return yaml.safe_dump_all(render_case(case), sort_keys=False, width=120)


def read(case: str) -> str:
    """The objects of ``case`` that the golden files contain, as YAML."""
    base = path(BASE).read_text()
    return base if case == BASE else apply(base, path(case).read_text())


def objects(case: str) -> list[Object]:
    """The objects of ``case`` that the golden files hold."""
    return list(yaml.safe_load_all(read(case)))


def content(case: str) -> str:
    """What the golden file of ``case`` has to be."""
    return rendered(BASE) if case == BASE else difference(rendered(BASE), rendered(case))


def difference(base: str, text: str) -> str:
    """The unified diff from ``base`` to ``text``."""
    old, new = base.splitlines(), text.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    opcodes: list[Opcode] = []
    for opcode in _opcodes(_documents(old), _documents(new)):
        if opcodes and (opcodes[-1][0], opcode[0]) == ("equal", "equal"):
            opcode = ("equal", opcodes[-1][1], opcode[2], opcodes.pop()[3], opcode[4])
        opcodes.append(opcode)
    matcher.opcodes = opcodes  # type: ignore[attr-defined]
    return "".join(f"{line}\n" for hunk in matcher.get_grouped_opcodes(CONTEXT) for line in _hunk(hunk, old, new))


def apply(base: str, patch: str) -> str:
    """``base`` with the unified diff ``patch``. Raises ValueError where the diff is not one of ``base``."""
    old, new, position = base.splitlines(), [], 0
    for line in patch.splitlines():
        if match := _HUNK.match(line):
            start = int(match[1]) - bool(int(match[2]))
            new += old[position:start]
            position = start
            if len(new) != int(match[3]) - bool(int(match[4])):
                raise ValueError(f"{line}: begins at line {len(new) + 1} of the result")
            continue
        kind, text = line[:1], line[1:]
        if kind in (" ", "-"):
            if position >= len(old) or old[position] != text:
                raise ValueError(f"line {position + 1} of the base is not {text!r}")
            position += 1
        elif kind != "+":
            raise ValueError(f"not a line of a unified diff: {line!r}")
        if kind in (" ", "+"):
            new.append(text)
    return "".join(f"{line}\n" for line in [*new, *old[position:]])


def _documents(lines: Sequence[str]) -> list[list[str]]:
    """The lines of each YAML document, all but the first with the separator before it."""
    starts = [0, *(i for i, line in enumerate(lines) if line == "---")]
    return [[*lines[i:j]] for i, j in itertools.pairwise([*starts, len(lines)])]


def _identity(document: Sequence[str]) -> tuple[str, str]:
    """Kind and name of an object, without the hash of its revision."""
    kind = next((line for line in document if line.startswith("kind: ")), "")
    name = next((line for line in document if line.startswith("  name: ")), "")
    return kind, re.sub(r"-[0-9a-f]{8}$", "", name)


def _opcodes(old: Sequence[list[str]], new: Sequence[list[str]]) -> Iterator[Opcode]:
    """How ``old`` becomes ``new``, line by line: only lines of the same object are compared with each other."""
    by_object = difflib.SequenceMatcher(None, [*map(_identity, old)], [*map(_identity, new)], autojunk=False)
    i = j = 0
    for tag, old_start, old_end, new_start, new_end in by_object.get_opcodes():
        pairs = [*zip(old[old_start:old_end], new[new_start:new_end], strict=True)] if tag == "equal" else []
        for before, after in pairs:
            for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
                yield kind, i + i1, i + i2, j + j1, j + j2
            i, j = i + len(before), j + len(after)
        if tag != "equal":
            removed, added = sum(map(len, old[old_start:old_end])), sum(map(len, new[new_start:new_end]))
            yield tag, i, i + removed, j, j + added
            i, j = i + removed, j + added


def _hunk(hunk: Sequence[Opcode], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first = next(opcode for opcode in hunk if opcode[0] != "equal")
    old_start, old_end, new_start, new_end = hunk[0][1], hunk[-1][2], hunk[0][3], hunk[-1][4]
    heading = _heading(new, first[3]) if first[3] < first[4] else _heading(old, first[1])
    # A range of no lines is numbered by the line before it.
    old_number, new_number = old_start + (old_end > old_start), new_start + (new_end > new_start)
    yield f"@@ -{old_number},{old_end - old_start} +{new_number},{new_end - new_start} @@ {heading}"
    for tag, i1, i2, j1, j2 in hunk:
        if tag == "equal":
            yield from (f" {line}" for line in old[i1:i2])
        else:
            yield from (f"-{line}" for line in old[i1:i2])
            yield from (f"+{line}" for line in new[j1:j2])


def _heading(lines: Sequence[str], position: int) -> str:
    """Kind and name of the object at ``position``, and the path of the fields that enclose that line."""
    start = max((i for i in range(position + 1) if lines[i] == "---"), default=-1) + 1
    end = next((i for i in range(start, len(lines)) if lines[i] == "---"), len(lines))
    document = lines[start:end]
    kind = next((line.removeprefix("kind: ") for line in document if line.startswith("kind: ")), "")
    name = next((line.removeprefix("  name: ") for line in document if line.startswith("  name: ")), "")
    steps: list[str] = []
    column = _column(lines[position])
    for i in range(position - 1, start - 1, -1):
        if (key := re.fullmatch(r"[ -]*([\w./-]+):", lines[i])) and _key_column(lines[i]) < column:
            column = _key_column(lines[i])
            steps.append(key[1])
        elif _column(lines[i]) < column and (item := re.fullmatch(r" *- name: (\S+)", lines[i])):
            steps.append(f"[{item[1]}]")
            column = _column(lines[i])
    return f"{kind} {name}: {'.'.join(reversed(steps))}".rstrip(": ")


def _column(line: str) -> int:
    """Where the line begins. YAML writes the dash of an item in the column of its list's key: it counts half a step."""
    return len(line) - len(line.lstrip(" ")) + line.lstrip(" ").startswith("- ")


def _key_column(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))
