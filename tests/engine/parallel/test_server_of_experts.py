"""A real server whose two processes have some experts whole each."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.rank_servers import refusal_here
from engine_support.server_process import running_server
from engine_support.tiny_text import write_model

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7}
FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "16MiB")
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("s")


def test_it_answers_what_one_rank_answers(folder: Path) -> None:
    """Of five experts one rank has two, the other three; vLLM's spelling of the flag is taken, too."""
    model = write_model(folder / "model", **MIXTRAL)
    texts = []
    for place, flags in (("o", ()), ("e", ("-tp", "2", "--enable-expert-parallel"))):
        with running_server(folder / place, model, *flags, *FLAGS, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
    assert texts[0] == texts[1]


def test_without_experts_or_ranks_it_says_so(folder: Path) -> None:
    model = write_model(folder / "model")
    for flags, says in (
        (("-tp", "2"), "--enable_expert_parallel: the model (Qwen2ForCausalLM) has no experts; leave the flag out"),
        ((), "enable_expert_parallel divides experts among the ranks of tensor_parallel_size, which is 1; give 2 or "),
    ):
        assert says in refusal_here(model, *FLAGS, *flags, "--enable_expert_parallel")
