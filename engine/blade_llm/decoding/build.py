"""The drafter of a configuration."""

from __future__ import annotations

from blade_llm.config import METHODS_WITH_HEAD, SpeculativeConfig
from blade_llm.decoding.draft_model import CATCH_UP, GPU_CATCH_UP, DraftModel
from blade_llm.decoding.lookahead.drafter import LookaheadDrafter
from blade_llm.decoding.method import Method
from blade_llm.decoding.prompt_lookup import Ngram
from blade_llm.decoding.speculator import Speculator
from blade_llm.decoding.step_seconds import StepSeconds


def speculator_of(
    config: SpeculativeConfig | None,
    seconds: StepSeconds | None,
    *,
    block_size: int,
    draft_positions: int,
    on_host: bool = True,
    deterministic: bool = False,
) -> Speculator | LookaheadDrafter | None:
    """The drafter of an engine; None without speculative decoding.

    ``seconds``: measured times of steps. Without any, a step is taken to cost the same with up to eight tokens as with
    one, and more in proportion from there on. ``draft_positions``: the longest sequence of the draft model;
    ``on_host``: the CPU computes; ``deterministic``: tokens are the same, to the last bit of their logits.
    """
    if config is None:
        return None
    seconds = seconds or StepSeconds({1: 1.0, 8: 1.0})
    if config.method == "look_ahead":
        return LookaheadDrafter(config, seconds, deterministic=deterministic)
    method: Method
    if config.method == "ngram":
        method = Ngram(config.ngram_min_match)
    else:
        catch_up, shift = CATCH_UP if on_host else GPU_CATCH_UP, int(config.method in METHODS_WITH_HEAD)
        method = DraftModel(block_size, draft_positions, catch_up, shift)
    return Speculator(
        method,
        seconds,
        gamma=config.gamma,
        disable_above_batch=config.disable_above_batch,
    )
