"""The runner of an engine: of one rank, or of several that are started here."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blade_llm.config import EngineConfig
from blade_llm.engine.ranks.messages import RankStart
from blade_llm.engine.ranks.processes import RankProcesses
from blade_llm.engine.ranks.runner import LoadedRunner, RankedRunner
from blade_llm.models.config import ModelConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.runner import build_runner, preload

if TYPE_CHECKING:
    from blade_llm.parallel.group import RankGroup

COLLECTIVE_SECONDS: Final = 300.0
"""How long a rank waits for the others: they load weights at different speeds. An exit is noticed at once, so this is
for a rank that hangs."""
_WATCH_SECONDS: Final = 0.1


def build_with_ranks(config: EngineConfig, model_config: ModelConfig) -> tuple[LoadedRunner, RankProcesses | None]:
    """A runner that is loaded and warmed up, and the processes of the other ranks if there are any.

    Raises what :func:`~blade_llm.runner.build_runner` raises, whatever rank it comes from,
    :class:`~blade_llm.models.errors.UnsupportedModelError` for a number of ranks that does not divide the model, and
    :class:`~blade_llm.engine.ranks.lost.RankFailedError`.
    """
    size = config.tensor_parallel_size
    if size == 1:
        return build_runner(config, model_config), None
    own = shard_model(model_config, 0, size)
    ranks = RankProcesses(size, log_level="ERROR")  # what else they have to say, rank 0 says as well
    try:
        preload()
        from blade_llm.runner.device import require_devices

        require_devices(size)
        with _meeting_place(size) as address, ranks.naming_the_rank():
            ranks.start(config, group=address)
            group = _join_first(address, size, ranks)
            ranks.watch(lambda rank, failure: group.abort(rank))
            runner = build_runner(config, own, group)
            ranks.wait_ready()
    except BaseException:
        ranks.kill()
        raise
    return RankedRunner(runner, ranks), ranks


def build_rank(start: RankStart) -> LoadedRunner:
    """The runner of another rank, in its own process."""
    config = start.config
    model_config = read_model_config(config.model_dir, config.model_impl, config.task)
    own = shard_model(model_config, start.rank, start.size)
    return build_runner(config, own, _join(start.group, start.rank, start.size))


def _join_first(address: str, size: int, ranks: RankProcesses) -> RankGroup:
    """Join as rank 0, in a thread: nothing stops a join that waits for a rank which is lost."""
    joined: Future[RankGroup] = Future()

    def join() -> None:
        try:
            joined.set_result(_join(address, 0, size))
        except BaseException as error:
            joined.set_exception(error)

    threading.Thread(target=join, daemon=True).start()
    while not wait([joined], _WATCH_SECONDS).done:
        ranks.raise_if_lost()
    return joined.result()


def _join(address: str, rank: int, size: int) -> RankGroup:
    preload()
    from blade_llm.parallel.build import join_group
    from blade_llm.runner.device import choose_device

    return join_group(address, rank, size, choose_device(rank).type, COLLECTIVE_SECONDS)


@contextlib.contextmanager
def _meeting_place(size: int) -> Iterator[str]:
    """An address for ``size`` ranks of this host; all have joined when the block ends."""
    from blade_llm.parallel.shared_memory import MAX_RANKS, create_segment, is_available
    from blade_llm.runner.device import choose_device

    if choose_device().type == "cpu" and is_available() and size <= MAX_RANKS:
        segment = create_segment(size)
        try:
            yield f"shm:{segment}"
        finally:
            segment.unlink(missing_ok=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="blade_llm-"))
    try:
        yield f"file:{folder / 'ranks'}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
