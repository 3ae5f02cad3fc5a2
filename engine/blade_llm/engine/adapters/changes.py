"""Loading, registering, replacing and unloading adapters, as calls ask for it, and how that ends.

An adapter that is to replace another one is read beside it and takes its name only when it is good.
"""

from __future__ import annotations

from collections.abc import Callable

from blade_llm.engine.adapters.entry import Adapter, LoadedAdapter
from blade_llm.engine.adapters.files import AdapterFiles, is_local
from blade_llm.engine.adapters.host_memory import HostMemory
from blade_llm.engine.adapters.names import MOST_NAMES, AdapterNames
from blade_llm.engine.adapters.paths import normalized
from blade_llm.engine.adapters.pipeline import MOST_PENDING, AdapterPipeline
from blade_llm.engine.messages import AdapterReply, LoadAdapter, RequestError, UnloadAdapter


class AdapterChanges:
    """Changes of the set of adapters of one engine."""

    def __init__(self, names: AdapterNames, host: HostMemory, pipeline: AdapterPipeline, files: AdapterFiles) -> None:
        self._names = names
        self._host = host
        self._pipeline = pipeline
        self._files = files

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, message: LoadAdapter, reply: Callable[[AdapterReply], None]) -> None:
        """Carry out ``message``; ``reply`` is called when it is done or refused, without ``wait`` at once."""
        error = self._names.refusal(message)
        pending: Adapter | None = None
        if error is None:
            pending, error = self._begin(message)

        def answer(error: RequestError | None, *, pending: bool = False) -> None:
            known = self._names.get(message.name)
            adapters = [] if known is None or error is not None else [self._names.info(known)]
            reply(AdapterReply(call_id=message.call_id, error=error, adapters=adapters, pending=pending))

        if error is not None or pending is None or not message.wait:
            answer(error, pending=pending is not None)
        else:
            pending.calls.append(answer)

    def unload(self, message: UnloadAdapter) -> AdapterReply:
        """Take the name away. Who waits for it to be loaded is told so."""
        adapter = self._names.remove(message.name)
        if adapter is None:
            known = ", ".join(self._names.answering) or "none"
            error = RequestError(
                message=f"there is no adapter {message.name!r}; loaded are {known}", kind="unknown_adapter"
            )
            return AdapterReply(call_id=message.call_id, error=error)
        self._abandon(adapter, f"adapter {message.name!r} was unloaded meanwhile")
        return AdapterReply(call_id=message.call_id)

    def _begin(self, message: LoadAdapter) -> tuple[Adapter | None, RequestError | None]:
        """The adapter that is on its way from now on, None if there is nothing to do; or why it may not be."""
        known = self._names.get(message.name)
        if known is not None and known.state != "failed" and normalized(known.path) == normalized(message.path):
            return self._keep(known, message)
        if known is not None and known.state != "failed" and not known.by_path:
            if not message.replace:
                text = f"adapter {known.name!r} is loaded already, from {known.path}; unload it first"
                return None, RequestError(message=text, kind="conflict")
            return self._replace(known, message)
        if (known is None or known.state == "failed") and self._names.full:
            return None, RequestError(message=f"{MOST_NAMES} adapters are loaded, no more may; unload some")
        if self._pipeline.full:
            return None, _busy()
        adapter = Adapter(message.name, message.path, pinned=message.pinned, register_only=message.register_only)
        self._names.put(adapter)
        if known is not None:
            self._abandon(known, f"adapter {known.name!r} was loaded anew meanwhile")
        self._start(adapter)
        return adapter, None

    def _keep(self, known: Adapter, message: LoadAdapter) -> tuple[Adapter | None, RequestError | None]:
        """The name has the path that it is to have: read it, unless that is done or not asked for."""
        known.by_path = False
        known.pinned = message.pinned or (known.pinned and not message.replace)
        if known.replacement is not None:
            self._abandon(known.replacement, f"adapter {known.name!r} was to keep its path meanwhile")
            known.replacement = None
        if known.number or (message.register_only and known.answers):
            return None, None
        if known.state == "loading" and (known.files or known.weights or known.queued):
            known.register_only = known.register_only and message.register_only
            return known, None
        if self._pipeline.full:
            return None, _busy()
        known.register_only = False
        self._pipeline.enqueue(known)
        return known, None

    def _replace(self, known: Adapter, message: LoadAdapter) -> tuple[Adapter | None, RequestError | None]:
        """Read what is to take the name of ``known``."""
        coming = known.replacement
        if coming is not None and normalized(coming.path) == normalized(message.path):
            coming.pinned = message.pinned
            return coming, None
        if self._pipeline.full:
            return None, _busy()
        if coming is not None:
            self._abandon(coming, f"adapter {known.name!r} was replaced by another one meanwhile")
        known.replacement = Adapter(known.name, message.path, pinned=message.pinned, named=False)
        self._start(known.replacement)
        return known.replacement, None

    def _start(self, adapter: Adapter) -> None:
        if adapter.register_only or not is_local(adapter.path):
            self._pipeline.prepare(adapter)
        else:
            self._pipeline.enqueue(adapter)

    def _abandon(self, adapter: Adapter, why: str) -> None:
        """Nobody wants ``adapter`` any more, but requests that wait for it."""
        if not adapter.waiting:
            self._pipeline.withdraw(adapter)
        adapter.reply(RequestError(message=why, kind="conflict"))
        if adapter.replacement is not None:
            self._abandon(adapter.replacement, why)
            adapter.replacement = None

    # ── how it ends ─────────────────────────────────────────────────────────────────────────────────────────────────

    def is_current(self, adapter: Adapter) -> bool:
        """Whether ``adapter`` has its name, or is to get it."""
        return adapter.named or self._replaced_by(adapter) is not None

    def registered(self, adapter: Adapter) -> None:
        """The files of ``adapter`` are good; its weights are read for its first request."""
        adapter.state, adapter.reason = "registered", ""
        self._names.recovered(adapter)
        adapter.reply(None)

    def loaded(self, adapter: Adapter, weights: LoadedAdapter) -> None:
        """The weights of ``adapter`` were read: it is in host memory, and has its name now if it replaces another."""
        old = self._replaced_by(adapter)
        if old is not None and old.number and old.digest == weights.digest:
            self._files.forget(adapter.coming)
            self._rename(old, adapter)
            return
        if old is not None:
            old.replacement = None
            adapter.named = True
            self._names.put(adapter)
            self._abandon(old, f"adapter {old.name!r} was replaced by another one meanwhile")
        self._host.put(adapter, weights)
        if adapter.named:
            self._names.recovered(adapter)
        adapter.reply(None)

    def failed(self, adapter: Adapter, why: RequestError) -> None:
        """``adapter`` could not be loaded; what it was to replace goes on."""
        old = self._replaced_by(adapter)
        if old is not None:
            old.replacement, old.reason = None, why.message
            self._names.changed()
        elif adapter.named and adapter.by_path:
            self._names.remove(adapter.name)
        elif adapter.named:
            for forgotten in self._names.fail(adapter, why.message):
                self._abandon(forgotten, f"{forgotten.name!r} failed, and so did many others meanwhile")
        adapter.reply(why)

    def _rename(self, old: Adapter, adapter: Adapter) -> None:
        """Another path has the very same content: the weights stay."""
        old.replacement, old.reason = None, ""
        old.path, old.folder, old.pinned = adapter.path, adapter.folder, adapter.pinned
        self._names.changed()
        adapter.reply(None)

    def _replaced_by(self, adapter: Adapter) -> Adapter | None:
        """What ``adapter`` is to replace."""
        known = self._names.get(adapter.name)
        return known if known is not None and known.replacement is adapter else None


def _busy() -> RequestError:
    text = f"busy: {MOST_PENDING} adapters wait to be loaded; try again in a moment"
    return RequestError(message=text, kind="overloaded")
