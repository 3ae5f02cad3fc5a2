"""What an engine drafts."""

from __future__ import annotations

from typing import Any

from blade_llm.engine.core import EngineCore


class Recorder:
    """The drafts of an engine: the known tokens, and what was drafted after them."""

    def __init__(self, core: EngineCore) -> None:
        self.drafts: list[tuple[list[int], list[int]]] = []
        runner: Any = core._runner
        launch = runner.launch_forward

        def record(plan: Any, *masks: Any) -> Any:
            forward = launch(plan, *masks)
            by_slot = runner.draft_tokens(forward)
            for chunk in plan.chunks:
                if chunk.num_draft_tokens:
                    known = runner.tables.token_ids[chunk.slot, : chunk.start + 1].tolist()
                    self.drafts.append((known, by_slot[chunk.slot]))
            return forward

        runner.launch_forward = record
