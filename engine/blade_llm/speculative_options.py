"""Speculative decoding as users ask for it: by BladeLLM's flags, by vLLM's ``speculative_config``, or by arguments of
``LLM(...)``; all become one :class:`~blade_llm.config.SpeculativeConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.config import SpeculativeConfig, SpeculativeMethod
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
_METHODS: Final = {
    "ngram": "ngram",
    "draft_model": "draft",
    "draft": "draft",
    "look_ahead": "look_ahead",
    "eagle3": "eagle3",
    "mtp": "mtp",
}
_MTP_ALIASES: Final = ("deepseek_mtp", "mimo_mtp", "qwen3_next_mtp")
"""vLLM's names of ``mtp``, by the model."""
_REFUSED: Final = {
    "eagle": "heads of EAGLE and EAGLE-2 are not read; use eagle3 with an EAGLE-3 head of the model, or draft with a "
    "small model",
    "medusa": "Medusa heads are not read; use eagle3 with an EAGLE-3 head of the model, or draft with a small model",
    "mlp_speculator": "MLP speculators are not read; use eagle3 with an EAGLE-3 head of the model, or draft with a "
    "small model",
}
"""vLLM's methods that are not here, and what to use instead."""
_BY_ALGO: Final[Mapping[str, SpeculativeMethod]] = {
    "sps": "draft",
    "ngram": "ngram",
    "look_ahead": "look_ahead",
    "eagle3": "eagle3",
    "mtp": "mtp",
}
_NEEDED: Final = {"sps": "a draft model", "eagle3": "a draft head"}
"""What --draft.model is, where a method needs it."""


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
    "draft.kv_cache_quant",
    "draft.kv_cache_quant_sub_heads",
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
    _check_draft_model(algo, flags["draft.model"])
    if algo == "normal":
        return None
    config = SpeculativeConfig(
        method=_BY_ALGO[algo],
        gamma=flags["gamma"],
        disable_above_batch=flags["speculative_disable_by_batch_size"],
        ngram_min_match=flags["ngram_min_match"],
        look_ahead_window_size=flags["look_ahead_window_size"],
        look_ahead_gram_size=flags["look_ahead_gram_size"],
        guess_set_size=flags["guess_set_size"],
        draft_model=flags["draft.model"] or "",
        draft_dtype=flags["draft.dtype"],
        draft_kv_cache_quant=flags["draft.kv_cache_quant"],
        draft_kv_cache_quant_sub_heads=flags["draft.kv_cache_quant_sub_heads"],
    )
    return _resolved(config, resolve)


def _check_draft_model(algo: str, draft_model: str | None) -> None:
    if draft_model and algo == "mtp":
        raise ValueError(
            "--decode_algo mtp takes the layers that the model's own checkpoint brings: leave --draft.model out, or "
            "give --decode_algo sps or eagle3 with it"
        )
    if draft_model and algo not in _NEEDED:
        raise ValueError("--draft.model needs --decode_algo sps or eagle3; give one, or leave --draft.model out")
    if algo in _NEEDED and not draft_model:
        raise ValueError(
            f"--decode_algo {algo} needs {_NEEDED[algo]}: give --draft.model, or --decode_algo ngram for none"
        )


def _resolved(config: SpeculativeConfig, resolve: Resolve) -> SpeculativeConfig:
    """``config`` with the folder of its draft model, which is found once all the rest is known to be right."""
    if not config.draft_model:
        return config
    return msgspec.structs.replace(config, draft_model=str(resolve(config.draft_model)))


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
    fields["method"] = _method(str(method))
    if fields.get("draft_model"):
        fields["draft_model"] = str(fields["draft_model"])
    try:
        config = msgspec.convert(fields, SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"speculative_config: {error}") from None
    return _resolved(config, resolve)


def _method(name: str) -> str:
    """Our name of a method that ``name`` is the name of here or in vLLM."""
    if name in _MTP_ALIASES:
        return "mtp"
    if name not in _METHODS:
        instead = _REFUSED.get(name, f"use {' or '.join(_METHODS)}")
        raise ValueError(f"speculative_config: method {name!r} is not available; {instead}")
    return _METHODS[name]


def draft_tokenizer_folder(config: SpeculativeConfig | None, given: str | None = None) -> Path | None:
    """The folder of the tokenizer that has to be the model's, ``given`` or the draft model's; None where draft tokens
    come from none, as those of draft heads, which read the model's."""
    if config is None or config.method != "draft":
        return None
    return Path(given or config.draft_model)


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
