"""A tokenizer as wide as Qwen2's, of the words of Python's own library: masks cost what they would there.

151,643 byte-level tokens: words with and without a space before them, numbers, punctuation, runs of white space, and
Chinese characters alone and in groups.
"""

from __future__ import annotations

import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.peers.shapes import KNOWN_TOKENS
from blade_llm.tokenizer_files.byte_level import CHARACTER_TO_BYTE

WIDTH: Final = 151_643
_END: Final = "<|endoftext|>"
_LONGEST: Final = 16


def wide_tokenizer(folder: Path) -> Path:
    """Write it into ``folder`` unless it is there; returns the folder. Its end of sequence has the model's id."""
    if (folder / "tokenizer_config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in _words():
        built = word[0]
        for letter in word[1:]:
            if len(vocabulary) == KNOWN_TOKENS:
                vocabulary[_END] = KNOWN_TOKENS
            if built + letter not in vocabulary and len(vocabulary) < WIDTH:
                merges.append((built, letter))
                vocabulary[built + letter] = len(vocabulary)
            built += letter
        if len(vocabulary) == WIDTH:
            break
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": _END}), encoding="utf-8")
    return folder


def _words() -> Iterator[str]:
    """In the alphabet of byte-level tokenizers, the frequent ones first; without end."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        counts.update(re.findall(r" ?[A-Za-z]+|\d| ?[^\sA-Za-z0-9]{1,6}|\s+", text))
    characters = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}
    dice = random.Random(0)
    common = [word for word, _ in counts.most_common() if len(word) <= _LONGEST]
    endless = iter(int, 1)
    chinese = ("".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(dice.choice((1, 2, 2, 3)))) for _ in endless)
    made_up = (f" {dice.choice(common).strip()}{dice.choice(common).strip()}"[:_LONGEST] for _ in endless)
    for word in common:
        yield "".join(characters[byte] for byte in word.encode())
    for pair in zip(chinese, made_up, strict=False):
        for word in pair:
            yield "".join(characters[byte] for byte in word.encode())
