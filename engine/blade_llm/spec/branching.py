"""Which models' attention can branch: several continuations of one sequence in one step, as lookahead decoding needs
it."""

from __future__ import annotations

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.modules import ModulesSpec


def branching_problem(model: DecoderSpec | ModulesSpec, depth: int) -> str | None:
    """Why branches of ``depth`` tokens do not go together with ``model``, and what to do; None: they do. ``depth`` 0:
    there are none."""
    if not depth:
        return None
    windows: tuple[int, ...]
    if isinstance(model, DecoderSpec):
        attentions = [layer.attention for layer in model.layers if isinstance(layer.attention, AttentionSpec)]
        windows = tuple(each.window for each in attentions)
        if any(each.alibi_slopes for each in attentions):
            return (
                "lookahead decoding does not go together with ALiBi, whose penalties count places of tokens; give "
                "--decode_algo ngram or sps"
            )
    else:
        windows = model.windows
    if narrow := [window for window in windows if 0 < window <= depth]:
        return (
            f"the model's attention has a window of {narrow[0]} tokens, and lookahead decoding goes on for {depth}: "
            "lower --look_ahead_window_size or --look_ahead_gram_size, or give --decode_algo ngram or sps"
        )
    return None
