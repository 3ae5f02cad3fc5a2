"""The items by name, and running them: one that breaks is a failed item, never a lost report."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from blade_llm.check.flops_diff import check_flops_diff
from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import Wanted, check_model
from blade_llm.check.pb_env import check_pb_env
from blade_llm.check.ranks.local import check_ranks
from blade_llm.check.shm import check_shm
from blade_llm.config import EngineConfig
from blade_llm.models.errors import ModelFilesError
from blade_protocol.check import CheckItem

ENVIRONMENT_ITEMS: Final = {
    "check_shm": "shm",
    "check_pb_env": "pbEnv",
    "check_flops_diff": "flopsDiff",
}
"""What is checked without options: name to the short form that an ``LLMService`` uses."""
MODEL_ITEMS: Final = {"check_memory_fit": "memoryFit", "check_model": "model"}
"""What is added with ``--model``."""
RANK_ITEMS: Final = {"check_ranks": "ranks"}
"""What is added with several ranks on this machine."""
NODE_ITEMS: Final = {
    "check_nodes": "nodes",
    "check_versions": "versions",
    "check_clocks": "clocks",
    "check_allreduce": "allReduce",
}
"""What is added where several machines can meet, in any case: each needs the others."""
ITEMS: Final = {**ENVIRONMENT_ITEMS, **MODEL_ITEMS, **RANK_ITEMS, **NODE_ITEMS}


class Ranks(Protocol):
    """The ranks of an engine, as this machine checks them."""

    @property
    def here(self) -> int:
        """How many are on this machine."""

    def machines(self) -> Sequence[CheckItem]:
        """``NODE_ITEMS``, from a meeting with the other machines at the first call."""


def parse_items(text: str) -> tuple[str, ...]:
    """Full names of a comma-separated list of full or short names, in order, each once.

    Raises ``ValueError`` for an empty list, and for an unknown name with the nearest known one.
    """
    known = {alias.lower(): name for name, short in ITEMS.items() for alias in (name, short)}
    found: dict[str, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.lower() not in known:
            near = difflib.get_close_matches(part.lower(), known, n=1, cutoff=0.4)
            hint = f"did you mean {known[near[0]]!r}? " if near else ""
            raise ValueError(f"unknown item {part!r}; {hint}known are {', '.join(dict.fromkeys(known.values()))}")
        found[known[part.lower()]] = None
    if not found:
        raise ValueError("no item is named")
    return tuple(found)


def run_items(
    names: Sequence[str],
    config: Callable[[], EngineConfig],
    wanted: Wanted,
    report: Callable[[CheckItem], None],
    ranks: Ranks | None = None,
) -> list[CheckItem]:
    """Run the items ``names`` and hand each result to ``report`` as soon as it is there.

    ``config`` gives the engine's configuration, its model as a folder, and is called for the items that need it; what
    it raises fails them. ``wanted`` is what the service needs of the model's text side, ``ranks`` what the items about
    several ranks need.
    """
    checks: dict[str, Callable[[], CheckItem]] = {
        "check_shm": check_shm,
        "check_pb_env": check_pb_env,
        "check_flops_diff": check_flops_diff,
        "check_memory_fit": lambda: check_memory_fit(config()),
        "check_model": lambda: check_model(
            config().model_dir,
            wanted,
            config().model_impl,
            config().speculative,
            config().tensor_parallel_size,
            config().pipeline_parallel_size,
            enable_expert_parallel=config().enable_expert_parallel,
            with_visual=config().with_visual,
        ),
    }
    if ranks is not None:
        checks["check_ranks"] = lambda: check_ranks(ranks.here)
        checks |= {name: lambda name=name: _named(ranks.machines(), name) for name in NODE_ITEMS}  # type: ignore[misc]
    items = []
    for name in names:
        try:
            item = checks[name]()
        except ModelFilesError as error:
            item = CheckItem(name=name, status="FAILED", detail=str(error))
        except Exception as error:
            item = CheckItem(name=name, status="FAILED", detail=f"{type(error).__name__}: {error}")
        report(item)
        items.append(item)
    return items


def _named(items: Sequence[CheckItem], name: str) -> CheckItem:
    return next(item for item in items if item.name == name)
