"""The fields of ``spec.engine.speculative``: where draft tokens come from, and how many there are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.model_fields import URI
from blade_operator.spec.types import Hint, Record


class DraftModel(Record):
    """What makes draft tokens: a small model of the same tokenizer, or a draft head of the model."""

    uri: Annotated[
        str,
        StringConstraints(pattern=URI, max_length=1024),
        Hint("as spec.model.uri, of the same kind, or file:///absolute/folder"),
    ] = Field(
        description="Where it comes from, as `spec.model.uri`. Of the same kind (a `pvc://` one of the same claim), "
        "with its cache and Secrets, or `file:///folder`."
    )
    revision: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128),
            Hint("a branch, tag or commit of the hub"),
        ]
        | None
    ) = Field(default=None, description="Branch, tag or commit of an `hf://` or `modelscope://` draft model.")


class Ngram(Record):
    """How draft tokens are found in a request's own text."""

    min_match: int = Field(
        default=2, ge=1, le=16, description="Tokens that have to be equal at least (`--ngram_min_match`)."
    )


class Lookahead(Record):
    """The window of lookahead decoding and its guesses: the W, N and G of Fu et al., arXiv 2402.02057."""

    window_size: int = Field(
        default=7,
        ge=1,
        le=127,
        description="Positions that are guessed at once (`--look_ahead_window_size`).",
    )
    gram_size: int = Field(default=3, ge=2, le=64, description="Tokens of an n-gram (`--look_ahead_gram_size`).")
    guess_set_size: int = Field(
        default=5, ge=1, le=127, description="N-grams that are verified in a step (`--guess_set_size`)."
    )


class Speculative(Record):
    """Speculative decoding: the same tokens in fewer steps. It switches itself off where it costs more than it
    gives."""

    method: Literal["draft", "ngram", "lookahead", "eagle3", "mtp"] = Field(
        description="Where draft tokens are from (`--decode_algo`). `draft` (`sps`): a small model. `ngram`: what "
        "followed the last time that the text went on as it does now. `lookahead` (`look_ahead`): the model's guesses "
        "of its own later tokens, in the steps that decode. `eagle3`: an EAGLE-3 draft head, which reads the model's "
        "hidden states. `mtp`: the multi-token-prediction layers of the model's own checkpoint."
    )
    draft_model: DraftModel | None = Field(
        default=None, description="The model of method `draft`, or the draft head of `eagle3` (`--draft.model`)."
    )
    steps: int = Field(
        default=4,
        ge=1,
        le=16,
        description="Most draft tokens of a request in one step (`--gamma`). For all methods but `lookahead`.",
    )
    disable_above_batch: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="No draft tokens while an engine runs more requests (`--speculative_disable_by_batch_size`). The "
        "measured cost decides when unset.",
    )
    ngram: Ngram | None = Field(default=None, description="Settings of method `ngram`.")
    lookahead: Lookahead | None = Field(default=None, description="Settings of method `lookahead`.")
