"""The loop of every worker: JSON lines in, JSON lines out. Standard library only, any Python.

The first line says that the model is loaded. Each request has ``prompts`` (token ids) and ``max_tokens``, and where
there are adapters the one of each prompt; its response has ``seconds``, from the prompts being handed over to the last
token, and the ``tokens``. An engine prints what it likes: responses go to a copy of standard output that it does not
know.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[..., list[list[int]]]
"""Of prompts, the number of tokens, and where there are adapters the one of each prompt."""


def options() -> dict:
    """What the benchmark wants: ``model``, ``threads``, ``kv_bytes``, ``quant``, ``max_length``, ``peer_dtype``."""
    return json.loads(sys.argv[1])


def serve(load: Callable[[], Generate]) -> None:
    """Serve until standard input ends. ``load`` returns a function that completes prompts greedily, at full length."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate = load()
    generate([[1, 2, 3]], 2)  # whatever is made on first use belongs to the start
    _send(responses, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        adapters = [request["adapters"]] if "adapters" in request else []
        tokens = generate(request["prompts"], request["max_tokens"], *adapters)
        _send(responses, {"seconds": time.perf_counter() - begin, "tokens": tokens})


def _send(responses, message) -> None:
    responses.write(json.dumps(message) + "\n")
    responses.flush()
