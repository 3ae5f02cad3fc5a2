"""Cross-encoders score pairs of texts as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import SHAPE, engine_config

from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint

ENCODER = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
}
ROWS: dict[str, dict[str, Any]] = {
    "Bert": {**ENCODER, "type_vocab_size": 2},
    "Roberta": {**ENCODER, "type_vocab_size": 1, "pad_token_id": 1},
    "XLMRoberta": {**ENCODER, "type_vocab_size": 1, "pad_token_id": 1},
    "Qwen2": {**SHAPE, "pad_token_id": 0},
    "Qwen3": {**SHAPE, "head_dim": 16, "pad_token_id": 0},
}


@pytest.fixture(scope="module", params=list(ROWS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """A random model and transformers' own of it, in fp32."""
    import transformers

    family: str = request.param
    folder = tmp_path_factory.mktemp(family)
    config = getattr(transformers, f"{family}Config")(**ROWS[family], num_labels=1)
    name = f"{family}ForSequenceClassification"
    torch.manual_seed(20240607)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "norm" in parameter_name.lower():
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.12)
    model.save_pretrained(folder)
    reference = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
    return family, folder, reference


def score(reference: Any, tokens: list[int], second: int) -> float:
    """transformers' logit; the tokens from ``second`` on are the second text's where there are types."""
    types = {}
    if reference.config.model_type == "bert":
        types = {"token_type_ids": torch.tensor([[int(index >= second) for index in range(len(tokens))]])}
    with torch.no_grad():
        return float(reference(torch.tensor([tokens]), **types).logits[0, 0])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_scores(model: tuple[str, Path, Any], dtype: str, tolerance: float) -> None:
    """Pairs of different lengths in one step; the slots before held other pairs."""
    family, folder, reference = model
    encodes = "Qwen" not in family
    driver = Driver(build_runner(engine_config(folder, task="score", dtype=dtype)))
    for turn in range(2):
        pairs = {
            slot: ([max(token, 10) for token in prompt_of(length, seed=9 * turn + slot)], second)
            for slot, (length, second) in enumerate([(40, 7), (3, 2), (75, 60), (64, 0), (20, 19)][:: 1 - 2 * turn])
        }
        driver.embeddings.clear()
        for slot, (tokens, second) in pairs.items():
            driver.enter(slot, tokens, pooling="cls" if encodes else "last", second_text=second)
        driver.step({slot: len(tokens) for slot, (tokens, _) in pairs.items()})
        for slot, (tokens, second) in pairs.items():
            assert driver.embeddings[slot].shape == (1,)
            expected = score(reference, tokens, second or len(tokens))
            assert float(driver.embeddings[slot]) == pytest.approx(expected, abs=tolerance)
            driver.leave(slot)


def test_token_types_matter(model: tuple[str, Path, Any]) -> None:
    family, folder, _ = model
    driver = Driver(build_runner(engine_config(folder, task="score")))
    tokens = [max(token, 10) for token in prompt_of(30)]
    for slot, second in enumerate((0, 12)):
        driver.enter(slot, tokens, pooling="last" if "Qwen" in family else "cls", second_text=second)
    driver.step({0: 30, 1: 30})
    same = torch.allclose(driver.embeddings[0], driver.embeddings[1], atol=1e-6)
    assert same is (family != "Bert")


def test_the_check_knows_every_tensor(model: tuple[str, Path, Any]) -> None:
    _, folder, _ = model
    config, checkpoint = load_model_config(folder, "score"), open_checkpoint(folder)
    expected = config.tensors.found_in(checkpoint.tensors).expected()
    assert check_tensors(checkpoint, expected) == []
    assert set(checkpoint.tensors) == set(expected)


def test_a_cross_encoder_is_for_scores(model: tuple[str, Path, Any], tmp_path: Path) -> None:
    family, folder, _ = model
    for task in ("generate", "embed"):
        with pytest.raises(ModelFilesError, match=f"{family}ForSequenceClassification scores pairs .* --task score"):
            load_model_config(folder, task)  # type: ignore[arg-type]
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"id2label": {"0": "no", "1": "yes"}}))
    with pytest.raises(ModelFilesError, match="one label, not 2"):
        load_model_config(tmp_path, "score")
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(ModelFilesError, match="scores no pairs of texts; leave out --task score"):
        load_model_config(tmp_path, "score")
