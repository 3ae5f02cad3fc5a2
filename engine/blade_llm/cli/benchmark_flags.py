"""The flags of ``blade_llm_benchmark``, by what they are about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.benchmark.slo import Objective, parse_objective
from blade_llm.cli.flags import Flag, boolean, positive, share


def _number_above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _objective(text: str) -> Objective:
    try:
        return parse_objective(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: {error}") from None


_SERVER: Final = (
    Flag(name="base_url", help="the server, with or without /v1", default="http://127.0.0.1:8081", metavar="URL"),
    Flag(name="endpoint", help="which of its APIs", default="chat", choices=("chat", "completions")),
    Flag(name="model", help="name of the model (default: the first one the server lists)"),
    Flag(name="api_key", help="sent as a bearer token (default: $OPENAI_API_KEY)", metavar="KEY"),
    Flag(
        name="extra_body",
        help="more fields of every request, as JSON: '{\"top_p\": 0.9}'",
        kind=_object,
        metavar="JSON",
    ),
    Flag(name="temperature", help="of sampling", kind=float, default=0.0),
    Flag(name="ignore_eos", help="ask for answers of exactly the wanted length", kind=boolean, default=True),
    Flag(name="timeout", help="for one whole answer", kind=_number_above_zero, default=600.0, metavar="SECONDS"),
)
_LOAD: Final = (
    Flag(name="concurrency", help="closed loop: so many requests at any time (default: 1)", kind=positive),
    Flag(
        name="request_rate",
        help="open loop: so many requests per second; with --find_rate the first rate tried",
        kind=_number_above_zero,
        metavar="RATE",
    ),
    Flag(
        name="burstiness",
        help="shape of the gamma-distributed gaps of an open loop: 1 is Poisson, below 1 burstier, above 1 more even",
        kind=_number_above_zero,
        default=1.0,
        metavar="SHAPE",
    ),
    Flag(name="num_requests", help="measured requests (default: 100, or as many as --duration allows)", kind=positive),
    Flag(
        name="duration", help="send for so long, then wait for the answers", kind=_number_above_zero, metavar="SECONDS"
    ),
    Flag(
        name="warmup",
        help="requests before the measured ones, left out of all figures (default: as --concurrency, 64 at most)",
        kind=_count,
        metavar="N",
    ),
    Flag(name="seed", help="of prompts and arrivals", kind=_count, default=0, metavar="N"),
)
_PROMPTS: Final = (
    Flag(name="input_len", help="random words of so many tokens (default: ShareGPT-like lengths)", kind=positive),
    Flag(name="output_len", help="tokens to answer (default: 128; with ShareGPT its lengths)", kind=positive),
    Flag(name="dataset", help="a file of conversations in ShareGPT's format", kind=Path, metavar="FILE.json"),
    Flag(
        name="prompts",
        help="one prompt a line: text, or .jsonl of strings, prompts or messages",
        kind=Path,
        metavar="FILE",
    ),
    Flag(
        name="max_len",
        help="ShareGPT: leave out what has more tokens, in and out together",
        kind=positive,
        default=2048,
    ),
    Flag(
        name="tokenizer",
        help="folder of the served model, for prompts of exact length (default: tokens per word are measured)",
        kind=Path,
        metavar="DIR",
    ),
)
_JUDGING: Final = (
    Flag(
        name="slo",
        help="objectives, like ttft=200ms tpot=50ms e2e=5s: goodput is the rate of requests that keep all of them",
        kind=_objective,
        many=True,
        metavar="METRIC=TIME",
    ),
    Flag(name="find_rate", help="look for the highest rate that keeps --slo", kind=boolean, default=False),
    Flag(name="attainment", help="share of requests that must keep --slo", kind=share, default=0.9),
    Flag(
        name="probe_requests",
        help="judged per rate at least, after a fifth as many to warm up",
        kind=positive,
        default=100,
    ),
    Flag(
        name="probe_seconds",
        help="arrivals judged per rate at least",
        kind=_number_above_zero,
        default=20.0,
        metavar="SECONDS",
    ),
    Flag(name="rate_precision", help="stop once the rate is known so well", kind=share, default=0.05),
)
_OUTPUT: Final = (
    Flag(name="output", help="write all figures and every request here", kind=Path, metavar="FILE.json"),
    Flag(name="plot", help="draw charts: an .html page, or a .png (needs matplotlib)", kind=Path, metavar="FILE"),
)

GROUPS: Final = (
    ("server", _SERVER),
    ("load", _LOAD),
    ("prompts", _PROMPTS),
    ("judging", _JUDGING),
    ("results", _OUTPUT),
)
