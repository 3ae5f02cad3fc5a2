"""Sampling parameters of one request: the offline API's argument and the engine's wire form alike. No torch."""

from __future__ import annotations

from typing import Final

import msgspec

from blade_llm.sampling.grammar_spec import GrammarSpec

MAX_TEMPERATURE: Final = 1e6
MAX_REPETITION_PENALTY: Final = 1e6
"""Its inverse is the least one. Beyond, logits leave the range of the 32-bit numbers that the device computes with."""
MAX_LENGTH_PENALTY: Final = 10.0
"""Either way: beyond, the power of a long output's length is no number any more."""
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_CHARACTERS: Final = 8192
"""Of all bad words of a request."""
MAX_BAD_WORD_TOKENS: Final = 1024
"""Of all bad words of a request, each with and without a space before it."""
MAX_ALLOWED_TOKENS: Final = 16_384

INVALID_TOKEN: Final = -1
"""Sampled in place of a token where the model's logits are no numbers."""
NO_TOKEN: Final = -2
"""Sampled where a request's bad words, allowed tokens and the like leave no token to sample."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and stopping of one request.

    Order of application (all on the device): repetition, frequency and presence penalties, logit bias and bad words,
    the mask of the grammar or of the allowed tokens, temperature, top-k, top-p, min-p.
    A token is ``argmax(logits + Gumbel noise)``, the noise a function of (seed, sample index, position, token id).
    """

    max_tokens: int = 16
    """Most tokens to generate, at least 1."""
    min_tokens: int = 0
    """End-of-sequence and stop ids are masked until this many tokens exist."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: off."""
    min_p: float = 0.0
    """Keeps tokens at least this many times as likely as the likeliest; 0: off."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once for tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output."""
    seed: int | None = None
    """Fixes the noise; chosen at random on arrival when missing."""
    stop: tuple[str, ...] = ()
    """Stop strings; the API server finds them and aborts the request in the engine."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """None: none; k >= 0: the chosen token's log-probability and those of the k most likely tokens (before
    temperature and filters)."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but the first, which nothing predicts."""
    logit_bias: dict[int, float] = {}
    """Token id → what is added to its logit, after the penalties; -100 forbids a token as good as surely."""
    bad_words: tuple[str, ...] = ()
    """Words that the output may not have; whoever has the tokenizer writes them into ``bad_words_token_ids``."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output may not complete."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these are sampled; None: any. Where an end-of-sequence id is not among them, only length and stop strings
    end the output."""
    grammar_spec: GrammarSpec | None = None
    """The grammar that the output must follow; all other tokens are masked."""
    beam_width: int = 0
    """Beam search with so many beams, at least 2; 0: none, tokens are sampled."""
    length_penalty: float = 1.0
    """Beams are ranked by the sum of their log-probabilities divided by length to this power."""
    early_stopping: bool = False
    """End the beam search as soon as ``beam_width`` hypotheses are complete, not when no beam can beat them any
    more."""

    def problem(self) -> tuple[str, str] | None:
        """The first invalid field and what to change, or None. NaN and infinities never pass."""
        checks = self._ranges()
        if self.grammar_spec is not None:
            checks += self._valid_with_grammar()
        if self.beam_width:
            checks += self._neutral_for_beams()
        return next(((name, advice) for holds, name, advice in checks if not holds), None)

    def _ranges(self) -> tuple[_Check, ...]:
        return (
            (self.max_tokens >= 1, "max_tokens", "must be at least 1"),
            (0 <= self.min_tokens <= self.max_tokens, "min_tokens", "must lie between 0 and max_tokens"),
            (
                0.0 <= self.temperature <= MAX_TEMPERATURE,
                "temperature",
                f"must lie between 0 (greedy) and {MAX_TEMPERATURE:,.0f}",
            ),
            (0.0 < self.top_p <= 1.0, "top_p", "must be greater than 0 and at most 1"),
            (-1 <= self.top_k < 2**31, "top_k", "must be positive (below 2^31), or 0 or -1 to switch it off"),
            (0.0 <= self.min_p <= 1.0, "min_p", "must lie between 0 (off) and 1"),
            (
                1 / MAX_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY,
                "repetition_penalty",
                f"must lie between 0.000001 and {MAX_REPETITION_PENALTY:,.0f}; 1 switches it off",
            ),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "must lie between -2 and 2"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "must lie between -2 and 2"),
            (_is_count_of_logprobs(self.logprobs), "logprobs", "must lie between 0 and 20"),
            (_is_count_of_logprobs(self.prompt_logprobs), "prompt_logprobs", "must lie between 0 and 20"),
            (all(token >= 0 for token in self.logit_bias), "logit_bias", "takes token ids, which are not negative"),
            (
                all(-100.0 <= bias <= 100.0 for bias in self.logit_bias.values()),
                "logit_bias",
                "takes values between -100 and 100",
            ),
            (all(self.bad_words), "bad_words", "takes words that are not empty"),
            (len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", f"takes at most {MAX_BAD_WORDS} words"),
            (
                sum(map(len, self.bad_words_token_ids)) <= MAX_BAD_WORD_TOKENS,
                "bad_words",
                f"takes at most {MAX_BAD_WORD_TOKENS:,} tokens, each word with and without a space before it: give "
                "fewer or shorter words",
            ),
            (
                all(sequence and min(sequence) >= 0 for sequence in self.bad_words_token_ids),
                "bad_words_token_ids",
                "takes sequences of token ids, none of them empty",
            ),
            (
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "allowed_token_ids",
                "must not be empty; leave it out to allow all tokens",
            ),
            (
                all(token >= 0 for token in self.allowed_token_ids or ()),
                "allowed_token_ids",
                "takes token ids, which are not negative",
            ),
            (
                len(self.allowed_token_ids or ()) <= MAX_ALLOWED_TOKENS,
                "allowed_token_ids",
                f"takes at most {MAX_ALLOWED_TOKENS:,} token ids",
            ),
            (self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "must fit into 64 bits"),
            (all(self.stop) and len(self.stop) <= 16, "stop", "takes at most 16 strings, none of them empty"),
            (self.beam_width == 0 or 2 <= self.beam_width <= 64, "beam_width", "must lie between 2 and 64, or be 0"),
            (
                -MAX_LENGTH_PENALTY <= self.length_penalty <= MAX_LENGTH_PENALTY,
                "length_penalty",
                f"must lie between -{MAX_LENGTH_PENALTY:.0f} and {MAX_LENGTH_PENALTY:.0f}",
            ),
        )

    def _neutral_for_beams(self) -> tuple[_Check, ...]:
        """A beam search ranks by the model's own log-probabilities: nothing may change or sample from them."""
        off = "cannot be combined with a beam search, which ranks by the model's own probabilities: leave it out"
        return (
            (self.temperature in (0.0, 1.0), "temperature", off),
            (self.top_p == 1.0, "top_p", off),
            (self.top_k in (0, -1), "top_k", off),
            (self.min_p == 0.0, "min_p", off),
            (self.repetition_penalty == 1.0, "repetition_penalty", off),
            (self.presence_penalty == 0.0, "presence_penalty", off),
            (self.frequency_penalty == 0.0, "frequency_penalty", off),
            (not self.logit_bias, "logit_bias", off),
            (not (self.bad_words or self.bad_words_token_ids), "bad_words", off),
            (self.allowed_token_ids is None, "allowed_token_ids", off),
        )

    def _valid_with_grammar(self) -> tuple[_Check, ...]:
        return (
            (
                not self.ignore_eos,
                "ignore_eos",
                "cannot be combined with a structure: the answer ends where that is complete",
            ),
            (not self.beam_width, "beam_width", "cannot be combined with a structure: leave one of the two out"),
        )


_Check = tuple[bool, str, str]
"""Whether the check holds, the field it is about, and what to change where it does not."""


def _is_count_of_logprobs(count: int | None) -> bool:
    return count is None or 0 <= count <= 20


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token's, and the top-k as parallel tuples (best first)."""

    chosen: float
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    rank: int = 0
    """Number of tokens at least as likely as the chosen one; 0 where it is not computed: for sampled tokens."""
