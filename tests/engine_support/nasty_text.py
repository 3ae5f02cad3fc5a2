"""Texts that tokenizers and detokenizers get wrong, made by a seeded generator: the same ones in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

_PARTS: Final = (
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2009", "\u200b", "\u2028", "\x85", "\x0b",
    "hello", "Hello", "HELLO", "world", "the", "don't", "I'll", "they'RE", "tokenization", "\u2581",
    "\u2581\u2581", "##ing", "x", "0", "12", "345", "6789012345", "3.14", "1,000", "\u00bd", "\u2460", "\u0663",
    "\u00b2", ".", ",", "!", "?", "...", "\u2026", "---", "\u2014", "(", ")", "[", "{", "}}", "\"", "'", "\u2019",
    "<", ">", "</", "&amp;", "@", "#", "$", "%", "<0x0A>", "<0xE4>", "</s>x", "<unk", "\\n", "\\", "/", "://", "_",
    "__init__", "=>", "+=", "==", "\u00e9", "e\u0301", "\u00fc", "\u00df", "\u0130", "\ufb01", "\u01c4",
    "\u00e5\u0308", "\u0308", "\u0301\u0301\u0301", "\u4e2d\u6587", "\u65e5\u672c\u8a9e\u306e", "\u30ab\u3099",
    "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\u0e44\u0e17\u0e22", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0645\u0631\u062d\u0628\u0627", "\u202e\u05e2\u05d1", "\u0436\u0451", "\u0393\u03b5\u03b9\u03ac",
    "\uff21\uff22\uff23", "\uff11", "\U0001d4d0", "\U00020000", "\U0001f600",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f",
    "\x00", "\x07", "\x7f", "\ufeff", "\ufffd", "\uffff",
)  # fmt: skip


def nasty_texts(count: int, seed: int = 0) -> Iterator[str]:
    """``count`` different short texts."""
    chosen = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        pieces = []
        for _ in range(chosen.randint(1, 8)):
            kind = chosen.random()
            if kind < 0.75:
                pieces.append(chosen.choice(_PARTS) * (chosen.randint(2, 9) if chosen.random() < 0.05 else 1))
            elif kind < 0.9:
                pieces.append("".join(chosen.choices("abcdefghijklmnopqrstuvwxyz AEIOU", k=chosen.randint(1, 7))))
            else:
                code = chosen.choice(
                    (chosen.randint(1, 0x2FF), chosen.randint(0x300, 0xD7FF), chosen.randint(0xE000, 0x1FFFF))
                )
                pieces.append(chr(code))
        text = "".join(pieces)
        if text not in seen:
            seen.add(text)
            yield text


CORPUS: Final = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there! don't they'll tokenization",
    "def f(x): return x += 1",
    "na\u00efve caf\u00e9 \u4e2d\u6587 \u65e5\u672c\u8a9e\u306e "
    "\ud55c\uad6d\uc5b4 \u0645\u0631\u062d\u0628\u0627 \u0e44\u0e17\u0e22",
    "numbers 0 1 2 3 4 5 6 7 8 9 10 12 345 6789",
    "Hello HELLO World The THE",
] * 8
