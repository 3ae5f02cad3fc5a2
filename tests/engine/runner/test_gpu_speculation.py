"""Speculative decoding on a GPU: the tokens of ordinary decoding, with CUDA graphs for steps without drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.feature_load import core_for, free_drafts, requests_of, run
from engine_support.heads import save_eagle3, save_with_mtp
from engine_support.tiny_models import engine_config

from blade_llm.config import SpeculativeConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
REQUESTS = requests_of(24)


@pytest.mark.parametrize("method", ["ngram", "draft", "look_ahead", "eagle3", "mtp"])
def test_no_token_differs(tmp_path: Path, method: str) -> None:
    save_with_mtp(tmp_path, "qwen3")
    save_eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    options = {"max_num_seqs": 24, "max_model_len": 256, "kv_cache_bytes": None, "deterministic": True}
    expected = run(core_for(engine_config(tmp_path, **options)), REQUESTS, stagger=1)
    draft = {"draft": str(tmp_path), "eagle3": str(tmp_path / "head")}.get(method, "")
    config = SpeculativeConfig(
        method=method,  # type: ignore[arg-type]
        gamma=3,
        ngram_min_match=1,
        draft_model=draft,
        look_ahead_gram_size=2,
    )
    core = core_for(engine_config(tmp_path, speculative=config, **options), step_seconds=free_drafts())
    found = run(core, REQUESTS, stagger=1)
    for name, result in found.items():
        assert result.tokens == expected[name].tokens
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.accepted_tokens > 0
