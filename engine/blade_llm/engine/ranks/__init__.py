"""Further ranks of an engine: the processes of those on this host, and what rank 0 sends to all of them.

Rank 0 is the engine process, or the process of an offline :class:`~blade_llm.llm.LLM`: it has the only scheduler.
:class:`~blade_llm.engine.ranks.processes.RankProcesses` starts the others and notices when one exits, and
:class:`~blade_llm.engine.ranks.runner.RankedRunner` sends them every step before rank 0 computes it.
"""
