"""A machine behind machine 0 of an engine on several: it starts its ranks when the leader says so, and ends with it.

This process computes nothing and imports no torch, so that it always answers the leader.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from blade_llm.config import EngineConfig
from blade_llm.engine.nodes.address import Address, choose_interface, parse_address
from blade_llm.engine.nodes.connection import Pace
from blade_llm.engine.nodes.follower import LeaderLink, LinkError
from blade_llm.engine.nodes.identity import identity_of, shared_token
from blade_llm.engine.nodes.messages import Join, RankLost, Welcome
from blade_llm.engine.ranks.child import RankChild
from blade_llm.engine.ranks.hangs import HangWatch
from blade_llm.engine.ranks.lost import LostRank
from blade_llm.engine.ranks.messages import RankStart
from blade_llm.engine.ranks.processes import BUILD_RANK
from blade_llm.engine.version import package_version
from blade_llm.parallel.layout import RankLayout

logger = logging.getLogger(__name__)
_LEADER_SECONDS: Final = 5.0
"""How long the leader may take to end after a rank of this machine is lost."""


class Follower:
    """Machine ``config.node_rank``. ``config`` is of this machine's own command line: its paths are used, and whatever
    else the leader's says. Made and used in one event loop.

    Raises ValueError for a ``dist_init_addr`` that is none.
    """

    def __init__(
        self, config: EngineConfig, *, build: str = BUILD_RANK, log_level: str = "INFO", pace: Pace | None = None
    ) -> None:
        self._config = config
        self._build, self._log_level = build, log_level
        self.leader: Address = parse_address(config.dist_init_addr)
        """Where machine 0 is."""
        self._layout = RankLayout.of(config)
        self._link = LeaderLink(self.leader, shared_token(), pace)
        self._children: list[RankChild] = []
        self._joined = False
        self._lost: asyncio.Queue[LostRank] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._on_host = False
        """The ranks compute on CPUs."""
        self._watch = HangWatch(self._children, self._put, lambda: self._on_host and self._link.serving)

    @property
    def serving(self) -> bool:
        """All ranks of the engine are ready, and the leader is there."""
        return self._link.serving

    @property
    def joined(self) -> bool:
        """The leader has let this machine in and started its ranks."""
        return self._joined

    def kill(self) -> None:
        """Kill the ranks at once."""
        for child in self._children:
            child.kill()

    async def run(self) -> str:
        """Join the leader and run this machine's ranks; return why that ended. Cancelled, it leaves. No process is
        left."""
        reason = "it was stopped"
        try:
            choose_interface(self.leader)  # before the processes, which inherit it
            self._spawn()
            try:
                self._start(await self._join())
            except LinkError as error:
                reason = str(error)
                return reason
            reason = await self._wait()
            return reason
        finally:
            self._watch.close()
            self.kill()
            await self._link.close(reason)
            for child in self._children:
                child.join()
                child.stop()

    def _spawn(self) -> None:
        """Let the processes import what they need until the leader is there."""
        for rank in self._layout.ranks_of_node(self._config.node_rank):
            self._children.append(RankChild(rank, self._build, self._put))
        for child in self._children:
            child.spawned()
        self._watch.start()

    def _put(self, lost: LostRank) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lost.put_nowait, lost)
        except RuntimeError:  # the loop is closed: this process ends
            logger.debug("%s", lost.failure.message)

    async def _join(self) -> Welcome:
        config = self._config
        identity = await asyncio.to_thread(identity_of, config.model_dir)
        join = Join(
            node_rank=config.node_rank,
            nnodes=config.nnodes,
            num_ranks=config.num_ranks,
            identity=identity,
            nonce=b"",
        )
        logger.info("machine %d joins machine 0 at %s", config.node_rank, self.leader)
        joining = asyncio.ensure_future(self._link.join(join, config.dist_timeout))
        lost = asyncio.ensure_future(self._lost.get())
        try:
            await asyncio.wait((joining, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise LinkError(lost.result().failure.message)
            return joining.result()
        finally:
            joining.cancel()
            lost.cancel()

    def _start(self, welcome: Welcome) -> None:
        config = merged(welcome.config, self._config)
        self._joined = True
        self._on_host = welcome.device_type == "cpu"
        for child in self._children:
            child.start(
                RankStart(
                    config=config,
                    rank=child.rank,
                    size=self._layout.size,
                    plans=f"tcp://{self.leader.with_port(welcome.plans_port)}",
                    group=f"tcp://{self.leader.with_port(welcome.group_port)}",
                    failure_pipe=child.failure_pipe,
                    build=self._build,
                    version=package_version(),
                    log_level=self._log_level,
                    session_key=welcome.session_key,
                    device_type=welcome.device_type,
                )
            )

    async def _wait(self) -> str:
        """Why the replica ends: a rank of this machine, or what the leader says."""
        leader = asyncio.ensure_future(self._link.wait())
        lost = asyncio.ensure_future(self._lost.get())
        try:
            await asyncio.wait((leader, lost), return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                return leader.result()
            first = lost.result()
            self._report(first)
            # The leader knows best what was the cause of all.
            done, _ = await asyncio.wait((leader,), timeout=_LEADER_SECONDS)
            return leader.result() if done and first.consequence else first.failure.message
        finally:
            leader.cancel()
            lost.cancel()

    def _report(self, lost: LostRank) -> None:
        logger.error("%s", lost.failure.message)
        self._link.report(RankLost(rank=lost.rank, failure=lost.failure, consequence=lost.consequence))


def merged(leader: EngineConfig, own: EngineConfig) -> EngineConfig:
    """The leader's settings with this machine's number and paths.

    Raises :class:`~blade_llm.engine.nodes.follower.LinkError` for a path that its command line lacks.
    """
    speculative = leader.speculative
    if speculative is not None and speculative.draft_model:
        if own.speculative is None or not own.speculative.draft_model:
            raise LinkError("machine 0 has a draft model, and this machine none: give all machines the same flags")
        speculative = msgspec.structs.replace(speculative, draft_model=own.speculative.draft_model)
    return msgspec.structs.replace(
        leader,
        model=own.model,
        tokenizer_dir=own.tokenizer_dir,
        packed_cache_dir=own.packed_cache_dir,
        node_rank=own.node_rank,
        dist_init_addr=own.dist_init_addr,
        speculative=speculative,
    )
