"""Beam search on the fake model, written out: whole sequences, every token, one list of candidates a step."""

from __future__ import annotations

from collections.abc import Sequence

from engine_support.fake_runner import context_of, fake_logprob

from blade_llm.sampling.parameters import SamplingParams


def beams_alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    max_model_len: int = 1 << 30,
) -> list[tuple[list[int], str, int | None]]:
    """(output, finish reason, stop token) of each output, best first."""
    width = sampling.beam_width
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
    most = min(sampling.max_tokens, max_model_len - len(prompt))
    start = context_of(prompt)[-1]
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int], str, int | None]] = []
    for length in range(1, most + 1):
        candidates: list[tuple[float, list[int]]] = []
        for score, tokens in live:
            context = context_of(tokens, start)[-1] if tokens else start
            allowed = set(range(vocab_size)) - (set() if length > sampling.min_tokens else stops)
            candidates += [(score + fake_logprob(context, token), [*tokens, token]) for token in allowed]
        candidates.sort(key=lambda each: -each[0])
        live = []
        for rank, (score, tokens) in enumerate(candidates):
            if tokens[-1] not in stops and length < most:
                if len(live) < width:
                    live.append((score, tokens))
            elif rank < width:
                ranked = score / length**sampling.length_penalty
                if tokens[-1] in stops:
                    done.append((ranked, tokens[:-1], "stop", tokens[-1]))
                else:
                    done.append((ranked, tokens, "length", None))
        done = sorted(done, key=lambda each: -each[0])[:width]
        beaten = bool(live and done) and live[0][0] / length**sampling.length_penalty <= done[-1][0]
        if len(done) == width and (sampling.early_stopping or beaten):
            break
    return [(tokens, reason, stop) for _, tokens, reason, stop in done]
