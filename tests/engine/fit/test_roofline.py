"""Bounds of speed: what they are made of, and that they move in the right direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blade_llm.check.rank_memory import memory_on_gpu, read_model
from blade_llm.config import EngineConfig
from blade_llm.fit.gpus import GPUS, NAMES, find_gpu
from blade_llm.fit.roofline import Roofline, expert_share, experts_touched

DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
EXPERTS = {**DENSE, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}


def roofline(folder: Path, fields: dict[str, object], **config: object) -> Roofline:
    (folder / "config.json").write_text(json.dumps(fields))
    engine = EngineConfig(model=str(folder), served_names=(), **config)  # type: ignore[arg-type]
    return Roofline(memory_on_gpu(engine, read_model(engine))[0], find_gpu("a100"))


def test_one_request_waits_for_the_weights(tmp_path: Path) -> None:
    roof = roofline(tmp_path, DENSE)
    layer = 1024 * 128 * (8 + 2 + 2) + 8 * 128 * 1024 + 3 * 1024 * 4096
    read = 2 * (4 * layer + 32000 * 1024)  # all but the embedding table, in two bytes
    assert roof.decode_seconds(1, 0) == pytest.approx(read / 2039e9, rel=0.001)


def test_a_long_context_adds_its_keys_and_values(tmp_path: Path) -> None:
    roof = roofline(tmp_path, DENSE)
    token = 2 * 4 * 2 * 128 * 2
    added = roof.decode_seconds(4, 8192) - roof.decode_seconds(4, 0)
    assert added == pytest.approx(4 * 8192 * token / 2039e9, rel=1e-6)


def test_many_requests_wait_for_arithmetic(tmp_path: Path) -> None:
    roof = roofline(tmp_path, DENSE)
    assert roof.decode_seconds(4096, 0) == pytest.approx(2 * roof.decode_seconds(2048, 0), rel=1e-6)
    assert roof.decode_seconds(2, 0) == roof.decode_seconds(1, 0)


def test_quantised_weights_are_read_faster(tmp_path: Path) -> None:
    whole, eight = roofline(tmp_path, DENSE), roofline(tmp_path, DENSE, quant="int8")
    assert eight.decode_seconds(1, 0) == pytest.approx(whole.decode_seconds(1, 0) / 2, rel=0.01)


def test_a_token_reads_its_experts_and_a_batch_nearly_all(tmp_path: Path) -> None:
    roof = roofline(tmp_path, EXPERTS)
    part = roof.rank.part
    assert experts_touched(part, 1) == pytest.approx(2 / 8)
    assert experts_touched(part, 2) == pytest.approx(1 - (6 / 8) ** 2)
    assert experts_touched(part, 64) > 0.999
    assert expert_share(part) > 0.8
    assert roof.decode_seconds(1, 0) < 0.5 * roof.decode_seconds(64, 0)
    dense = roofline(tmp_path, DENSE)
    assert expert_share(dense.rank.part) == 0.0
    assert experts_touched(dense.rank.part, 1) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_in_order(name: str) -> None:
    gpu = GPUS[name.lower()]
    assert find_gpu(name) is gpu
    assert find_gpu(name.lower()) is gpu
    assert 0 < gpu.memory.free < gpu.memory.total < 256 << 30
    assert 3e11 <= gpu.bandwidth <= 1e13
    # All are slower at reading than at multiplying: a decode of one request waits for memory.
    assert gpu.flops > 10 * gpu.bandwidth
