"""What is measured, alternately: one engine after the other within a round, in turn first, round after round.

The machine's other work and its clock change slowly, so neighbours in time are compared, and the median of the ratios
counts. Rates come from differences: a run with many tokens less one with a single token leaves the decoding alone.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.running import Running
from benchmarks.peers.shapes import KNOWN_TOKENS

Measure = Callable[[Running, random.Random], float]


def decode(engine: Running, dice: random.Random, tokens: int = 128) -> float:
    """Tokens a second of one stream, so many after a prompt of 128."""
    prompt = [words(dice, 128)]
    first = engine.generate(prompt, 1).seconds
    return tokens / (engine.generate(prompt, tokens + 1).seconds - first)


def prefill(engine: Running, dice: random.Random) -> float:
    """Prompt tokens a second of one prompt of 1,024, its first token included."""
    return 1024 / engine.generate([words(dice, 1024)], 1).seconds


def throughput(engine: Running, dice: random.Random) -> float:
    """Output tokens a second of 16 requests at once, 128 in and 128 out, the prefill included."""
    return 16 * 128 / engine.generate([words(dice, 128) for _ in range(16)], 128).seconds


def short_decode(engine: Running, dice: random.Random) -> float:
    """As `decode`, 32 tokens: for many rounds, where other work on the machine comes and goes."""
    return decode(engine, dice, 32)


def short_throughput(engine: Running, dice: random.Random) -> float:
    """As `throughput`, 16 in and 64 out."""
    return 16 * 64 / engine.generate([words(dice, 16) for _ in range(16)], 64).seconds


def words(dice: random.Random, count: int) -> list[int]:
    """A prompt."""
    return [dice.randrange(256, KNOWN_TOKENS) for _ in range(count)]


@dataclass
class Row:
    """One measure of several engines, round by round."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, ours: str, peer: str) -> float:
        """Median over the rounds of ours divided by the peer's."""
        return statistics.median(self.ratios(ours, peer))

    def ratios(self, ours: str, peer: str) -> list[float]:
        """Ratio of each round."""
        return [mine / theirs for mine, theirs in zip(self.values[ours], self.values[peer], strict=True)]

    def median(self, name: str) -> float:
        """Median of all rounds."""
        return statistics.median(self.values[name])


def alternate(engines: Sequence[Running], measure: Measure, rounds: int, seed: int = 0) -> Row:
    """Measure every engine in every round, all with the same prompts; who is first changes."""
    row = Row()
    for number in range(rounds):
        turn = number % len(engines)
        for engine in (*engines[turn:], *engines[:turn]):
            value = measure(engine, random.Random(f"{seed} {number}"))
            row.values.setdefault(engine.peer.name, []).append(value)
    return row


def measured(what: str, row: Row, unit: str) -> Row:
    """Print a row with its spread, as it comes."""
    for name, values in row.values.items():
        low, high = min(values), max(values)
        print(f"{what:24} {name:24} {statistics.median(values):8.1f} {unit} ({low:.1f} to {high:.1f})", file=sys.stderr)
    return row
