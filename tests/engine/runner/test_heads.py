"""Heads that draft from hidden states draft what their checkpoints say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.draft_recorder import Recorder
from engine_support.feature_load import check_equal, core_for, free_drafts, run
from engine_support.heads import MTP_ROWS, Eagle3Reference, MTPReference, save_eagle3, save_with_mtp
from engine_support.tiny_models import engine_config, save_model
from safetensors.torch import load_file, save_file

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.kernels.backend import backend_of
from blade_llm.models.errors import ModelFilesError
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.weights.packed_cache.sources import WritingSource

MTP = SpeculativeConfig(method="mtp", gamma=3)
native = pytest.mark.skipif(backend_of(torch.empty(0)) != "native", reason="the native operators are off")
PROMPT = [(7 * i + 3) % 190 + 3 for i in range(75)]
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)


def record_drafts(folder: Path, speculative: SpeculativeConfig, **limits: Any) -> list[tuple[list[int], list[int]]]:
    """Of a prompt that is computed in parts, and of one that goes on after the same beginning, which is cached."""
    config = engine_config(folder, max_model_len=256, speculative=speculative, **limits)
    core = core_for(config, step_seconds=free_drafts())
    recorder = Recorder(core)
    for name, prompt in (("first", PROMPT), ("second", [*PROMPT[:64], 5, 6, 7])):
        run(core, [GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=GREEDY)], stagger=1)
    assert len(recorder.drafts) > 10
    return recorder.drafts


@pytest.mark.parametrize("row", MTP_ROWS)
def test_layers_for_multi_token_prediction_draft_what_transformers_layers_say(tmp_path: Path, row: str) -> None:
    save_with_mtp(tmp_path, row)
    reference = MTPReference(tmp_path, row)
    for known, drafted in record_drafts(tmp_path, MTP, max_batch_tokens=40):
        assert drafted == reference.draft(known, len(drafted)), known


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"vocab_size": 199},
        {"speculators": True, "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [3, 0, 2]},
        {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": None}},
    ],
    ids=["own vocabulary", "all tokens", "speculators", "eagle config"],
)
def test_eagle3_drafts_what_transformers_attention_says(tmp_path: Path, head: dict[str, Any]) -> None:
    target, folder = tmp_path / "target", tmp_path / "head"
    save_model(target, "llama", num_hidden_layers=5)
    save_eagle3(folder, **head)
    reference = Eagle3Reference(folder, target)
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(folder), gamma=3)
    for known, drafted in record_drafts(target, speculative, max_batch_tokens=40):
        assert drafted == reference.draft(known, len(drafted)), known


def test_a_head_may_be_pickled(tmp_path: Path) -> None:
    """As the authors of EAGLE-3 publish theirs."""
    target, folder, pickled = (tmp_path / name for name in ("target", "head", "pickled"))
    save_model(target, "llama", num_hidden_layers=5)
    save_eagle3(folder)
    pickled.mkdir()
    (pickled / "config.json").write_text((folder / "config.json").read_text())
    torch.save(load_file(folder / "model.safetensors"), pickled / "pytorch_model.bin")
    drafts = [
        record_drafts(target, SpeculativeConfig(method="eagle3", draft_model=str(each), gamma=3))
        for each in (folder, pickled)
    ]
    assert drafts[0] == drafts[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with a layer for multi-token prediction, and a head of EAGLE-3 for it."""
    target, head = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("head")
    save_with_mtp(target, "qwen3")
    save_eagle3(head, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return {"target": target, "head": head}


def speculative_of(method: str, folders: dict[str, Path], **options: Any) -> SpeculativeConfig:
    head = str(folders["head"]) if method == "eagle3" else ""
    return SpeculativeConfig(method=method, draft_model=head, **options)  # type: ignore[arg-type]


@native
@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_bf16_layers_in_one_call_leave_the_states_that_they_leave_one_by_one(
    folders: dict[str, Path], method: str
) -> None:
    """And the same tokens, with and without drafts."""
    speculative = speculative_of(method, folders, gamma=3)
    config = engine_config(
        folders["target"], dtype="bfloat16", deterministic=True, max_model_len=256, speculative=speculative
    )
    requests = [GenerateRequest(request_id="r", prompt_token_ids=PROMPT, sampling=GREEDY)]
    states, tokens = [], []
    for fused in (True, False):
        runner = build_runner(config)
        model: Any = runner.model
        assert model.fused is not None
        if not fused:
            model.fused = None
        tokens.append(run(core_for(config, runner, step_seconds=free_drafts()), requests, stagger=1))
        assert runner._states is not None
        states.append(runner._states.cache)
    assert (states[0] == states[1]).all()
    assert states[0].any()
    check_equal(tokens[0]["r"], tokens[1]["r"])
    plain = run(
        core_for(engine_config(folders["target"], dtype="bfloat16", deterministic=True, max_model_len=256)),
        requests,
        stagger=1,
    )
    check_equal(tokens[0]["r"], plain["r"])


def test_memory_is_planned_for_states_and_keys_of_the_head(folders: dict[str, Path]) -> None:
    """Half of a layer's keys and values for each layer of three, and 64 numbers more of each token."""
    given = 1 << 20
    plans = {}
    for method in ("", "mtp", "eagle3"):
        speculative = speculative_of(method, folders) if method else None
        config = engine_config(folders["target"], max_num_seqs=100, kv_cache_bytes=given, speculative=speculative)
        runner = build_runner(config)
        plans[method] = runner.memory_plan
        if method:
            assert runner.draft is not None
            kept = runner.draft.nbytes - runner._draft_weights.model.nbytes  # type: ignore[union-attr]
            assert given * 0.9 < kept + runner.memory_plan.kv_cache <= given * 1.02  # a block for padding on top
    kv = 2 * 3 * 2 * 16  # keys and values of a token in three layers
    for method, width in (("mtp", 2 * 2 * 16), ("eagle3", 2 * 2 * 16)):
        share = kv / (kv + width + 64)
        assert plans[method].kv_blocks == pytest.approx(plans[""].kv_blocks * share, abs=2)


BAD_HEADS = {
    "draft_vocab_size": ({}, "no EAGLE-3 head"),
    "of another size": ({"hidden_size": 128}, "'hidden_size' is 128, the model's 64"),
    "two layers": ({"num_hidden_layers": 2}, "'num_hidden_layers' 2 is not supported"),
    "another vocabulary": ({"vocab_size": 999, "draft_vocab_size": 64}, "the head of another model"),
    "no such layer": ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "below the model's 3"),
    "no states": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
}


@pytest.mark.parametrize("bad", BAD_HEADS)
def test_heads_of_other_models_are_refused(folders: dict[str, Path], tmp_path: Path, bad: str) -> None:
    save_eagle3(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    fields, said = BAD_HEADS[bad]
    config = {**json.loads((tmp_path / "config.json").read_text()), **fields}
    if bad == "draft_vocab_size":
        del config["draft_vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(tmp_path))
    with pytest.raises(ModelFilesError, match=said):
        build_runner(engine_config(folders["target"], speculative=speculative))


def test_tokens_that_the_model_does_not_have_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    save_eagle3(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["d2t"][-1] += 1000
    save_file(tensors, tmp_path / "model.safetensors")
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(tmp_path))
    with pytest.raises(ModelFilesError, match=r"drafts tokens \d+ to \d{4} \('d2t'\), the model's vocabulary has 199"):
        build_runner(engine_config(folders["target"], speculative=speculative))


@native
@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_packed_weights_of_a_head_are_kept_beside_the_models(
    folders: dict[str, Path], tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = WritingSource.finish

    def finish_and_wait(source: WritingSource) -> None:
        if (thread := finish(source)) is not None:
            thread.join()

    monkeypatch.setattr(WritingSource, "finish", finish_and_wait)
    monkeypatch.setattr("blade_llm.weights.packed_cache.loading.LEAST_BYTES", 0)
    speculative = speculative_of(method, folders, gamma=3)
    options: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 256, "speculative": speculative}
    kept = {"packed_cache_dir": str(tmp_path), "packed_cache_bytes": 1 << 30}
    requests = [GenerateRequest(request_id="r", prompt_token_ids=PROMPT, sampling=GREEDY)]
    found = []
    for extra in ({}, kept, kept):
        core = core_for(engine_config(folders["target"], **options, **extra), step_seconds=free_drafts())
        recorder = Recorder(core)
        found.append((run(core, requests, stagger=1)["r"].tokens, recorder.drafts))
    assert found[0] == found[1] == found[2]
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) >= 2


def test_a_checkpoint_without_layers_for_multi_token_prediction_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "llama", "llama")
    with pytest.raises(ModelFilesError, match=r"LlamaForCausalLM has no layers for multi-token prediction.*MiMo"):
        build_runner(engine_config(tmp_path / "llama", speculative=MTP))
    save_with_mtp(tmp_path / "none", "qwen3")
    config = (tmp_path / "none" / "config.json").read_text().replace('"num_nextn_predict_layers": 1', '"x": 1')
    (tmp_path / "none" / "config.json").write_text(config)
    with pytest.raises(ModelFilesError, match="this checkpoint has no layers for multi-token prediction"):
        build_runner(engine_config(tmp_path / "none", speculative=MTP))
