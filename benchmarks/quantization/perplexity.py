"""Perplexity as the engine serves: ``python -m benchmarks.quantization.perplexity MODEL TOKENS``, a program of its own.

The engine scores windows of token ids by the log-probabilities of prompts that its API has, too. So weights are
multiplied by the kernels that serve, activations are rounded where they are when it serves, and queries meet keys and
values as the KV cache holds them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blade_llm import LLM, SamplingParams
from blade_llm.config import EngineConfig

TOGETHER = 8
"""Windows of one call: logits of them all exist at a time."""


def perplexity(llm: LLM, windows: Sequence[Sequence[int]]) -> float:
    """``exp`` of the mean negative log-likelihood of all tokens but each window's first.

    Raises:
        ValueError: the engine's log-probabilities are no numbers.
    """
    total, count = 0.0, 0
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    for first in range(0, len(windows), TOGETHER):
        for output in llm.generate(list(windows[first : first + TOGETHER]), params):
            assert output.prompt_logprobs is not None
            values = [each.chosen for each in output.prompt_logprobs[1:] if each is not None]
            if len(values) != len(output.prompt_token_ids) - 1 or not all(map(math.isfinite, values)):
                raise ValueError("the engine's log-probabilities are not all numbers")
            total -= math.fsum(values)
            count += len(values)
    return math.exp(total / count)


def load(file: Path) -> list[list[int]]:
    """Windows out of a file of :func:`store`."""
    tokens: Tensor = torch.load(file, weights_only=True)
    return [list(map(int, each)) for each in tokens]


def store(windows: Tensor, file: Path) -> None:
    """Keep windows, int64 [windows, tokens]."""
    torch.save(windows, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity of a model in this engine, one JSON line.")
    parser.add_argument("model", type=Path)
    parser.add_argument("windows", type=Path, help="file of token ids")
    parser.add_argument("--count", type=int, help="windows to score (default: all)")
    parser.add_argument("--engine", default="{}", help="fields of EngineConfig as JSON")
    options = parser.parse_args()
    engine: dict[str, Any] = json.loads(options.engine)
    windows = load(options.windows)[: options.count]
    if unknown := engine.keys() - set(EngineConfig.__struct_fields__):
        parser.error(f"the engine has no {', '.join(sorted(unknown))}")
    llm = LLM(
        options.model,
        max_model_len=len(windows[0]) + 1,
        enable_prompt_cache=False,
        kv_cache_bytes=256 << 20,
        packed_cache_bytes=0,
        **engine,
    )
    print(json.dumps({"perplexity": perplexity(llm, windows)}))


if __name__ == "__main__":
    main()
