"""The runner of an engine: of one rank, or of several that are started here and on other machines."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blade_llm.config import EngineConfig
from blade_llm.engine.nodes.address import choose_interface, parse_address
from blade_llm.engine.nodes.identity import identity_of, shared_token
from blade_llm.engine.nodes.leader import Leader
from blade_llm.engine.nodes.messages import Welcome
from blade_llm.engine.ranks.lost import rank_failed
from blade_llm.engine.ranks.messages import RankStart
from blade_llm.engine.ranks.processes import RankProcesses
from blade_llm.engine.ranks.runner import LoadedRunner, RankedRunner
from blade_llm.models.config import ModelConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.route import free_port
from blade_llm.runner import build_runner, preload

if TYPE_CHECKING:
    from blade_llm.parallel.group import RankGroup
    from blade_llm.parallel.link import StageLink

    _Joined = tuple[RankGroup | None, StageLink | None]

COLLECTIVE_SECONDS: Final = 300.0
"""How long a rank waits for the others: they load weights at different speeds. An exit is noticed at once, and a
process that does nothing within seconds, so this is for a rank that computes for ever, or hangs on a GPU."""
_WATCH_SECONDS: Final = 0.1
_STUCK_SECONDS: Final = 10.0
"""How long who builds a runner may not come back when a rank is lost."""
logger = logging.getLogger(__name__)


def build_with_ranks(config: EngineConfig, model_config: ModelConfig) -> tuple[LoadedRunner, RankProcesses | None]:
    """A runner that is loaded and warmed up, and the processes of the other ranks if there are any.

    Raises what :func:`~blade_llm.runner.build_runner` raises, whatever rank it comes from,
    :class:`~blade_llm.models.errors.UnsupportedModelError` for a number of ranks that does not divide the model, and
    :class:`~blade_llm.engine.ranks.lost.RankFailedError`, and
    :class:`~blade_llm.models.errors.UnsupportedSettingError` for machines that do not join.
    """
    layout = RankLayout.of(config)
    if layout.size == 1:
        return build_runner(config, model_config), None
    own = rank_model(model_config, layout, 0)
    leader = _lead(config, layout) if layout.nodes > 1 else None
    custom, built = config.enable_custom_allreduce, threading.Event()
    # What else the others have to say, rank 0 says as well.
    ranks = RankProcesses(layout.size, log_level="ERROR", local=layout.ranks_per_node, leader=leader)
    try:
        preload()
        from blade_llm.runner.device import choose_device, require_devices, require_gpus

        require_devices(layout.ranks_per_node)
        if custom:
            require_gpus(choose_device())
        _bind(layout, 0)  # the others are processes by now, which do not inherit it
        with _meeting_place(config, layout) as address, ranks.naming_the_rank():
            if leader is not None:
                _admit(leader, config, ranks, address)
            ranks.start(config, group=address)
            joined = _join_first(address, config, ranks)
            ranks.watch(lambda rank, failure: _abort(joined, rank, None if not custom else built))
            runner = build_runner(config, own, *joined)
            ranks.wait_ready(on_host=choose_device().type == "cpu")
    except BaseException:
        ranks.kill()
        raise
    finally:
        built.set()
    return RankedRunner(runner, ranks, polls=custom), ranks


def build_rank(start: RankStart) -> LoadedRunner:
    """The runner of another rank, in its own process."""
    config = start.config
    _require_devices(start)
    model_config = read_model_config(config.model_dir, config.model_impl, config.task)
    layout = RankLayout.of(config)
    own = rank_model(model_config, layout, start.rank)
    preload()
    _bind(layout, start.rank)
    return build_runner(config, own, *_join(start.group, config, start.rank, start.session_key))


def _bind(layout: RankLayout, rank: int) -> None:
    """On CPUs each rank keeps to its part of the host."""
    from blade_llm.runner.device import choose_device
    from blade_llm.runner.startup.numa import bind_rank

    if choose_device(rank).type == "cpu":
        bind_rank(layout.local_rank_of(rank), layout.ranks_per_node)


def _lead(config: EngineConfig, layout: RankLayout) -> Leader:
    """Listen for the other machines, first of all: a port that is taken is known at once."""
    address = parse_address(config.dist_init_addr)
    choose_interface(address)
    return Leader(address, layout, identity_of(config.model_dir), shared_token())


def _admit(leader: Leader, config: EngineConfig, ranks: RankProcesses, group: str) -> None:
    """Wait for the other machines, which then start their ranks."""
    from blade_llm.runner.device import choose_device

    welcome = Welcome(
        config=config,
        plans_port=ranks.plans_port,
        group_port=parse_address(group.removeprefix("tcp://")).port,
        session_key=ranks.session_key,
        device_type=choose_device().type,
    )
    leader.admit(welcome, config.dist_timeout, ranks.raise_if_lost)


def _require_devices(start: RankStart) -> None:
    """On another machine than rank 0's: its devices are enough, and of the same kind."""
    if not start.device_type:
        return
    preload()
    from blade_llm.runner.device import choose_device, require_devices

    require_devices(start.config.ranks_per_node)
    if (own := choose_device(start.rank).type) != start.device_type:
        raise rank_failed(
            start.rank,
            f"finds device type {own} on its machine, rank 0 {start.device_type}: give all machines the same devices",
        )


def _join_first(address: str, config: EngineConfig, ranks: RankProcesses) -> _Joined:
    """Join as rank 0, in a thread: nothing stops a join that waits for a rank which is lost."""
    joined: Future[_Joined] = Future()

    def join() -> None:
        try:
            joined.set_result(_join(address, config, 0, ranks.session_key))
        except BaseException as error:
            joined.set_exception(error)

    threading.Thread(target=join, daemon=True).start()
    while not wait([joined], _WATCH_SECONDS).done:
        ranks.raise_if_lost()
    return joined.result()


def _join(address: str, config: EngineConfig, rank: int, session_key: str) -> _Joined:
    preload()
    from blade_llm.parallel.ranks import join_ranks
    from blade_llm.runner.device import choose_device

    return join_ranks(
        address,
        RankLayout.of(config),
        rank,
        choose_device(rank).type,
        COLLECTIVE_SECONDS,
        session_key,
        custom_allreduce=config.enable_custom_allreduce,
    )


def _abort(joined: _Joined, lost_rank: int, built: threading.Event | None) -> None:
    """Let nothing wait here for a rank that is lost.

    ``built``: set once the runner is built, or is not going to be. Where it is given, kernels may wait that nothing can
    end, and this process for them; steps do not wait so (:class:`~blade_llm.engine.ranks.runner.RankedStep`).
    """
    for each in joined:
        if each is not None:
            each.abort(lost_rank)
    if built is not None:
        threading.Thread(target=_end_if_stuck, args=(built, lost_rank), daemon=True).start()


def _end_if_stuck(built: threading.Event, lost_rank: int) -> None:
    if not built.wait(_STUCK_SECONDS):
        logger.error("rank %d is lost, and this process waits for it on its GPU: it ends", lost_rank)
        logging.shutdown()
        os._exit(1)


@contextlib.contextmanager
def _meeting_place(config: EngineConfig, layout: RankLayout) -> Iterator[str]:
    """An address for all ranks, which have all joined when the block ends."""
    if layout.nodes > 1:
        yield f"tcp://{parse_address(config.dist_init_addr).with_port(free_port())}"
        return
    from blade_llm.parallel.ranks import stage_place
    from blade_llm.parallel.shared_memory import MAX_RANKS, MEMORY_FOLDER, create_segment, is_available
    from blade_llm.runner.device import choose_device

    shared = choose_device().type == "cpu" and is_available() and layout.tensor <= MAX_RANKS
    if shared and layout.pipeline == 1:
        segment = create_segment(layout.size)
        try:
            yield f"shm:{segment}"
        finally:
            segment.unlink(missing_ok=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="bladellm-ranks-", dir=MEMORY_FOLDER if shared else None))
    try:
        if layout.pipeline == 1:
            yield f"file:{folder / 'ranks'}"
            return
        for stage in range(layout.pipeline) if shared and layout.tensor > 1 else ():
            create_segment(layout.tensor, folder).rename(stage_place(folder, stage))
        yield f"{'shm' if shared else 'file'}:{folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
