"""``python -m engine_support.serve_unpaced FLAGS``: ``blade_llm_server`` with a fake engine that does what it can."""

import sys

from engine_support.api_core import HIDDEN, ApiCore
from engine_support.fake_core import EOS
from engine_support.fake_runner import FakeRunner

from blade_llm.cli.server import main
from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo


def build_core(config: EngineConfig) -> EngineCore:
    """``engine_support.serve_unpaced:build_core``"""
    runner = FakeRunner(
        num_blocks=config.max_kv_blocks or 1024,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len or 2048,
        max_batch_tokens=config.max_batch_tokens,
        verify=False,
    )
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        hidden_size=HIDDEN,
        memory=runner.memory_plan,
    )
    return ApiCore.from_config(config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,))


if __name__ == "__main__":
    sys.exit(main(build="engine_support.serve_unpaced:build_core"))
