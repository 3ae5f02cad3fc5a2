"""``tokenizer.json`` and ``tokenizer_config.json`` from the metadata of a GGUF file.

Two kinds: byte-level BPE (``gpt2``), whose splitting rule the file only names, and SentencePiece BPE (``llama``), whose
merges follow from the scores of the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final = {"qwen2": _WORDS % "", "llama-bpe": _WORDS % "{1,3}", "llama3": _WORDS % "{1,3}", "gpt-2": None}
"""``tokenizer.ggml.pre`` to the expression whose matches are words; None: that of GPT-2."""


def tokenizer_of(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the content of ``tokenizer_config.json``.

    Raises :class:`UnsupportedModelError`, and :class:`ModelFilesError` for metadata that is not there.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or tokens is None:
        raise UnsupportedModelError(
            f"tokenizer {kind!r} (tokenizer.ggml.model) is not supported; use a model of safetensors"
        )
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelFilesError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    tokenizer = (_byte_level if kind == "gpt2" else _sentence_piece)(metadata, tokens, types)
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=token_type == _CONTROL, normalized=False)])
    names = {role: _token(metadata, tokens, role) for role in ("bos", "eos", "unknown", "padding")}
    begins = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or _split(metadata) == "llama-bpe")
    bos = names["bos"]
    if begins and bos is not None:
        tokenizer.post_processor = processors.Sequence(
            [
                *([processors.ByteLevel(trim_offsets=False)] if kind == "gpt2" else []),
                processors.TemplateProcessing(
                    single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
                ),
            ]
        )
    config = {
        "bos_token": bos,
        "eos_token": names["eos"],
        "unk_token": names["unknown"],
        "pad_token": names["padding"],
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    return tokenizer, {name: value for name, value in config.items() if value is not None}


def _token(metadata: Mapping[str, Any], tokens: Sequence[str], role: str) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if index is None:
        return None
    if not 0 <= int(index) < len(tokens):
        raise ModelFilesError(f"tokenizer.ggml.{role}_token_id is {index}, there are {len(tokens)} tokens")
    return tokens[int(index)]


def _split(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("tokenizer.ggml.pre", "gpt-2"))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    split = _split(metadata)
    if split not in _SPLITS:
        raise UnsupportedModelError(
            f"the tokenizer splits words as {split!r} (tokenizer.ggml.pre), supported are {', '.join(_SPLITS)}; "
            "use the model's safetensors"
        )
    pairs = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2 and "".join(pair) in vocabulary]
    if len(merges) != len(pairs):
        raise ModelFilesError("tokenizer.ggml.merges does not go with tokenizer.ggml.tokens")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.startswith("llama")))
    expression = _SPLITS[split]
    if expression is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        words = pre_tokenizers.Split(Regex(expression), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelFilesError("tokenizer.ggml.scores is missing or not as long as tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    # SentencePiece merges what makes the best piece; where pieces tie, the earlier token.
    for index in sorted(range(len(tokens)), key=lambda each: (-scores[each], each)):
        token = tokens[index]
        if types[index] == 1:
            halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
            known = [(one, two) for one, two in halves if one in vocabulary and two in vocabulary]
            merges += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    unknown = next((token for token, token_type in zip(tokens, types, strict=True) if token_type == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(content=" ", left=1)] if prefix else []),
        ]
    )
    return tokenizer
