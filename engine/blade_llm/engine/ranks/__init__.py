"""Further ranks of a tensor-parallel engine on one host: their processes, and what rank 0 sends them.

Rank 0 is the engine process, or the process of an offline :class:`~blade_llm.llm.LLM`: it has the only scheduler.
:class:`~blade_llm.engine.ranks.processes.RankProcesses` starts the others and notices when one exits, and
:class:`~blade_llm.engine.ranks.runner.RankedRunner` sends them every step before rank 0 computes it.
"""
