"""The names of an engine's adapters: who has which, who may get one, and why another one failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from blade_llm.engine.adapters.entry import Adapter
from blade_llm.engine.adapters.host_memory import HostMemory
from blade_llm.engine.adapters.paths import in_roots, normalized
from blade_llm.engine.messages import AdapterInfo, LoadAdapter, RequestError
from blade_llm.scheduling.request import RequestRefusedError
from blade_protocol.adapters import AdapterTier

MOST_NAMES: Final = 1024
"""Adapters that have a name at once, failed ones apart."""
MOST_FAILED: Final = 256
"""Failed adapters that are remembered, with the reason; the oldest is forgotten first."""


class AdapterNames:
    """Adapters by name.

    Args:
        base_names: of the base model, which no adapter may have.
        roots: folders below which clients may name adapters by path.
    """

    def __init__(self, host: HostMemory, base_names: Iterable[str], roots: Sequence[str]) -> None:
        self._host = host
        self.base_names = frozenset(base_names)
        self._roots = tuple(roots)
        self._named: dict[str, Adapter] = {}
        self._failed: dict[str, None] = {}
        """Names of failed ones, the oldest first."""
        self._changes = 0
        self._answering: tuple[str, ...] = ()
        self._digests: tuple[str, ...] = ()
        self._tiers: tuple[AdapterTier, ...] = ()
        self._version: tuple[int, ...] = ()
        """When the three above were made."""

    def get(self, name: str) -> Adapter | None:
        """The adapter called ``name``."""
        return self._named.get(name)

    def put(self, adapter: Adapter) -> None:
        """Give ``adapter`` its name; who had it loses it."""
        self.remove(adapter.name)
        self._named[adapter.name] = adapter
        self._changes += 1

    def remove(self, name: str) -> Adapter | None:
        """Take the adapter called ``name`` its name; None: there is none."""
        adapter = self._named.pop(name, None)
        self._failed.pop(name, None)
        if adapter is not None:
            adapter.named = adapter.pinned = False
            self._host.leave(adapter)
            self._changes += 1
        return adapter

    def changed(self) -> None:
        """An adapter's state or content is another one now."""
        self._changes += 1

    def fail(self, adapter: Adapter, reason: str) -> list[Adapter]:
        """Remember why ``adapter``, which has a name, could not be loaded; those that are forgotten for it."""
        adapter.state, adapter.reason, adapter.pinned = "failed", reason, False
        self._failed.pop(adapter.name, None)
        self._failed[adapter.name] = None
        self._changes += 1
        forgotten = list(self._failed)[:-MOST_FAILED]
        return [gone for name in forgotten if (gone := self.remove(name)) is not None]

    def recovered(self, adapter: Adapter) -> None:
        """An adapter was loaded."""
        self._failed.pop(adapter.name, None)
        self._changes += 1

    @property
    def full(self) -> bool:
        """Whether no further adapter may get a name."""
        return len(self._named) - len(self._failed) >= MOST_NAMES

    @property
    def num_pinned(self) -> int:
        """Adapters that are pinned, or are to be."""
        return sum(map(_stays, self._named.values()))

    # ── what there is ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def answering(self) -> tuple[str, ...]:
        """Names that answer requests, in order."""
        self._refresh()
        return self._answering

    @property
    def digests(self) -> tuple[str, ...]:
        """Of their contents, in hexadecimal."""
        self._refresh()
        return self._digests

    @property
    def tiers(self) -> tuple[AdapterTier, ...]:
        """Where the weights of each are."""
        self._refresh()
        return self._tiers

    def infos(self) -> list[AdapterInfo]:
        """All that have a name, failed ones too."""
        return [self.info(adapter) for _, adapter in sorted(self._named.items())]

    def info(self, adapter: Adapter) -> AdapterInfo:
        """What is known of one."""
        return AdapterInfo(
            name=adapter.name,
            path=adapter.path,
            tier=self._host.tier(adapter),
            rank=adapter.rank,
            nbytes=adapter.nbytes,
            digest="" if adapter.state == "failed" else adapter.digest.hex(),
            pinned=adapter.pinned,
            requests=self._host.requests(adapter),
            state=adapter.state,
            reason=adapter.reason,
        )

    def _refresh(self) -> None:
        """Make the three tuples again if something changed: they are asked for in every step, for any number."""
        version = (self._changes, *self._host.version)
        if version != self._version:
            found = sorted((name, adapter) for name, adapter in self._named.items() if adapter.answers)
            self._answering = tuple(name for name, _ in found)
            self._digests = tuple(adapter.digest.hex() for _, adapter in found)
            self._tiers = tuple(self._host.tier(adapter) for _, adapter in found)
            self._version = version

    # ── who may ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, name: str, *, busy: bool) -> Adapter:
        """The adapter that a request calls ``name``: a name, or a folder below the allowed roots, which becomes one
        if none has it, unless too many wait (``busy``). Raises :class:`RequestRefusedError`."""
        adapter = self._named.get(name)
        if adapter is not None:
            if adapter.state == "failed" and adapter.folder is None:
                raise _unknown(f"model {name!r} could not be loaded: {adapter.reason}")
            if self._host.all_pinned and not adapter.number:
                raise _too_many()
            return adapter
        path = normalized(name)
        if "/" not in name and not name.startswith("~"):
            raise _unknown(f"model {name!r} does not exist; this server has {self._all()}")
        if problem := in_roots(name, self._roots):
            raise _unknown(problem)
        adapter = self._named.get(path)
        if adapter is None:
            if self.full or busy or self._host.all_pinned:
                raise _too_many()
            adapter = Adapter(path, path, by_path=True)
            self.put(adapter)
        return adapter

    def refusal(self, message: LoadAdapter) -> RequestError | None:
        """Why an adapter may not be loaded under its name, whatever else has it."""
        name = message.name
        if not name or name != name.strip():
            return RequestError(message="lora_name is empty or has blanks around it; give a name")
        if name in self.base_names:
            return RequestError(message=f"lora_name {name!r} is the base model's; choose another")
        if message.only_allowed_roots and (problem := in_roots(message.path, self._roots)):
            return RequestError(message=problem)
        known = self._named.get(name)
        there = known is not None and known.number and normalized(known.path) == normalized(message.path)
        if self._host.all_pinned and not message.register_only and not there:
            return RequestError(message="all adapters in host memory are pinned; raise --max_cpu_loras, or unload some")
        pinned = self.num_pinned - int(known is not None and _stays(known))
        if message.pinned and pinned >= self._host.capacity - 1:
            return RequestError(message=f"{pinned} adapters are pinned, which leaves no room; raise --max_cpu_loras")
        return None

    def _all(self) -> str:
        return ", ".join([*sorted(self.base_names), *self.answering])


def _stays(adapter: Adapter) -> bool:
    """Whether ``adapter`` is pinned, or what replaces it will be."""
    return adapter.pinned or (adapter.replacement is not None and adapter.replacement.pinned)


def _too_many() -> RequestRefusedError:
    """A request whose adapter cannot be loaded now."""
    message = "busy: too many adapters are loaded; try again in a moment"
    return RequestRefusedError(RequestError(kind="overloaded", message=message))


def _unknown(message: str) -> RequestRefusedError:
    return RequestRefusedError(RequestError(message=message, kind="unknown_adapter"))
