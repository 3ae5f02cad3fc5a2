"""Speculative decoding as users ask for it: by BladeLLM's flags, by vLLM's ``speculative_config``, or by arguments of
``LLM(...)``; all become one :class:`~blade_llm.config.SpeculativeConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from blade_llm.config import SpeculativeConfig
from blade_llm.models.errors import ModelFilesError

Resolve = Callable[[str], Path]
"""Finds a model's folder, and downloads it where it is not there."""

_VLLM: Final = {
    "num_speculative_tokens": "gamma",
    "prompt_lookup_min": "ngram_min_match",
    "disable_by_batch_size": "disable_above_batch",
    "model": "draft_model",
}
_IGNORED: Final = ("prompt_lookup_max", "draft_tensor_parallel_size", "max_model_len", "seed", "enforce_eager")
"""What changes nothing here: matches have any length, and the draft model is where the model is."""
_METHODS: Final = {"ngram": "ngram", "draft_model": "draft", "draft": "draft", "look_ahead": "look_ahead"}
_BY_ALGO: Final[Mapping[str, Literal["draft", "ngram", "look_ahead"]]] = {
    "sps": "draft",
    "ngram": "ngram",
    "look_ahead": "look_ahead",
}


SPECULATIVE_FLAGS: Final = (
    "decode_algo",
    "use_sps",
    "gamma",
    "speculative_disable_by_batch_size",
    "ngram_min_match",
    "use_lookahead",
    "look_ahead_window_size",
    "look_ahead_gram_size",
    "guess_set_size",
    "speculative_config",
    "draft.model",
    "draft.tokenizer_dir",
    "draft.dtype",
)
"""The flags that :func:`speculative_from_flags` reads, and the one of the draft's tokenizer."""


def speculative_from_flags(flags: Mapping[str, Any], resolve: Resolve) -> SpeculativeConfig | None:
    """What the command line asks for; None for ordinary decoding.

    Raises ``ValueError`` where flags contradict each other, and what ``resolve`` raises.
    """
    if flags["speculative_config"] is not None:
        if flags["decode_algo"] != "normal" or flags["draft.model"]:
            raise ValueError("--speculative_config says all of it: leave --decode_algo and --draft.model out")
        return speculative_of(flags["speculative_config"], resolve)
    algo = _algo(flags)
    if flags["draft.model"] and algo != "sps":
        raise ValueError("--draft.model needs --decode_algo sps; give it, or leave --draft.model out")
    if algo == "normal":
        return None
    if algo == "sps" and not flags["draft.model"]:
        raise ValueError("--decode_algo sps needs a draft model: give --draft.model, or --decode_algo ngram for none")
    return SpeculativeConfig(
        method=_BY_ALGO[algo],
        gamma=flags["gamma"],
        disable_above_batch=flags["speculative_disable_by_batch_size"],
        ngram_min_match=flags["ngram_min_match"],
        look_ahead_window_size=flags["look_ahead_window_size"],
        look_ahead_gram_size=flags["look_ahead_gram_size"],
        guess_set_size=flags["guess_set_size"],
        draft_model=str(resolve(flags["draft.model"])) if algo == "sps" else "",
        draft_dtype=flags["draft.dtype"],
    )


def _algo(flags: Mapping[str, Any]) -> str:
    asked = {flags["decode_algo"]} - {"normal"}
    asked |= {algo for switch, algo in (("use_sps", "sps"), ("use_lookahead", "look_ahead")) if flags[switch]}
    if len(asked) > 1:
        raise ValueError(
            f"the flags ask for {' and for '.join(sorted(asked))}; give one of --decode_algo, --use_sps and "
            "--use_lookahead"
        )
    return asked.pop() if asked else "normal"


def speculative_of(given: Mapping[str, Any] | SpeculativeConfig | None, resolve: Resolve) -> SpeculativeConfig | None:
    """``given`` in our names or in vLLM's. Raises ``ValueError`` for names and values that are not known."""
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    fields = {_VLLM.get(name, name): value for name, value in given.items() if name not in _IGNORED}
    known = SpeculativeConfig.__struct_fields__
    if unknown := [name for name in fields if name not in known]:
        raise ValueError(f"speculative_config has no {unknown[0]!r}; it has {', '.join((*known, *_VLLM))}")
    method = fields.setdefault("method", "draft" if fields.get("draft_model") else "ngram")
    if method not in _METHODS:
        raise ValueError(f"speculative_config: method {method!r} is not available; use {' or '.join(_METHODS)}")
    fields["method"] = _METHODS[method]
    if fields.get("draft_model"):
        fields["draft_model"] = str(resolve(str(fields["draft_model"])))
    try:
        return msgspec.convert(fields, SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"speculative_config: {error}") from None


def require_same_tokens(target: Mapping[str, int], draft: Mapping[str, int], folder: Path) -> None:
    """Check that a draft model's vocabulary is the model's, as its tokens are verified by their ids.

    Raises :class:`~blade_llm.models.errors.ModelFilesError`, with a token that differs.
    """
    if target == draft:
        return
    differing = {token for token in target.keys() | draft.keys() if target.get(token) != draft.get(token)}
    token = min(differing, key=lambda each: (target.get(each, draft.get(each, 0)), each))
    raise ModelFilesError(
        f"{folder}: its tokenizer is another one than the model's: {len(differing)} tokens differ, {token!r} is "
        f"{draft.get(token, 'missing')} instead of {target.get(token, 'missing')}; choose a smaller model of the same "
        "family as --draft.model"
    )
