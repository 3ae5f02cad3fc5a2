"""The CUDA graphs of a runner, by kind of step: one set for the base model alone, and where adapters are served one for
steps with any. A step without adapters replays what it would replay in an engine that serves none."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blade_llm.config import EngineConfig
from blade_llm.runner.graphs.decode import Decode, DecodeGraphs, GraphBackend, SizedGraphs, graph_batch_sizes
from blade_llm.runner.graphs.mixed import Forward, MixedGraphs, graph_token_sizes


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """The graphs of steps of one kind."""

    decodes: DecodeGraphs
    mixed: MixedGraphs | None
    """None: steps with prefill are launched kernel by kernel."""


def create_graphs(
    config: EngineConfig,
    backend: GraphBackend,
    decode: Decode,
    forward: Forward,
    padding_slot: int,
    device: torch.device,
    kind: str = "",
) -> StepGraphs:
    """Graphs of the sizes that ``config`` says, not captured yet. ``kind``: of the steps, for the log."""
    seqs = config.max_num_seqs
    sizes = graph_batch_sizes(config.cuda_graph_batch_sizes, config.cuda_graph_max_batch_size, seqs)
    decodes = DecodeGraphs(decode, sizes, padding_slot, device, backend)
    token_sizes = graph_token_sizes(
        config.cuda_graph_token_sizes, config.cuda_graph_max_tokens, config.max_batch_tokens
    )
    mixed: MixedGraphs | None = None
    if token_sizes:
        verifies = config.speculative is not None
        branches = config.branch_depth > 0
        mixed = MixedGraphs(forward, token_sizes, seqs, padding_slot, device, backend, verifies, branches)
    for graphs in (decodes, mixed):
        if graphs is not None:
            graphs.kind = kind
    return StepGraphs(decodes, mixed)


def in_capture_order(sets: list[StepGraphs]) -> list[SizedGraphs]:
    """All graphs of ``sets``, what needs most memory first, for the others to fit into."""
    return [graphs for each in sets for graphs in (each.mixed,) if graphs is not None] + [each.decodes for each in sets]
