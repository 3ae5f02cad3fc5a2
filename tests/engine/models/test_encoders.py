"""Encoders compute what transformers computes, and pool it, in batches, at every length."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config
from safetensors.torch import load_file, save_file

from blade_llm.llm import LLM
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint

SHAPE = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "type_vocab_size": 2,
}


@dataclass(frozen=True)
class Encoder:
    """A row: transformers' class of the model, and what its configuration has."""

    family: str
    longest: int
    """Most tokens of a text."""
    fields: dict[str, Any] = field(default_factory=dict)
    model: str = ""

    @property
    def model_class(self) -> str:
        return self.model or f"{self.family}Model"


ROWS = {
    "bert": Encoder("Bert", 130),
    "bert-tanh": Encoder("Bert", 130, {"hidden_act": "gelu_new"}),
    "bert-masked": Encoder("Bert", 130, model="BertForMaskedLM"),
    "roberta": Encoder("Roberta", 128, {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": Encoder("XLMRoberta", 125, {"pad_token_id": 4, "layer_norm_eps": 1e-5}),
}


def save_encoder(folder: Path, row: Encoder) -> Any:
    """Save a random model and return its encoder, as transformers has it, in fp32."""
    import transformers

    torch.manual_seed(20240607)
    config = getattr(transformers, f"{row.family}Config")(**{**SHAPE, **row.fields})
    model = getattr(transformers, row.model_class)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "LayerNorm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.12)
    model.save_pretrained(folder)
    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def states_of(reference: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens, hidden] fp32."""
    states: torch.Tensor = reference(torch.tensor([tokens])).last_hidden_state[0].float()
    return states


POOLS = {"cls": lambda states: states[0], "mean": lambda states: states.mean(0), "last": lambda states: states[-1]}


@pytest.fixture(scope="module", params=list(ROWS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path, Any]:
    row, folder = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    return row, folder, save_encoder(folder, row)


def _text(length: int, seed: int) -> list[int]:
    """Without the low ids: RoBERTa gives a padding token no position."""
    return [max(token, 10) for token in prompt_of(length, seed=seed)]


def _embed(folder: Path, texts: dict[int, tuple[list[int], Any]], **fields: Any) -> dict[int, torch.Tensor]:
    """In one step."""
    driver = Driver(build_runner(engine_config(folder, task="embed", max_batch_tokens=512, **fields)))
    for slot, (tokens, pooling) in texts.items():
        driver.enter(slot, tokens, pooling=pooling)
    driver.step({slot: len(tokens) for slot, (tokens, _) in texts.items()})
    return driver.embeddings


def test_every_state_in_fp32(model: tuple[Encoder, Path, Any]) -> None:
    """All ways of pooling and all lengths in one batch; a text that is as long as the model allows."""
    row, folder, reference = model
    kinds = ("cls", "mean", "last")
    lengths = (1, 17, 2, 64, row.longest, 33)
    texts = {slot: (_text(length, slot), kinds[slot % 3]) for slot, length in enumerate(lengths)}
    texts[7] = (_text(row.longest, 4), "cls")
    found = _embed(folder, texts)
    for slot, (tokens, pooling) in texts.items():
        expected = POOLS[pooling](states_of(reference, tokens))
        torch.testing.assert_close(found[slot], expected, atol=1e-4, rtol=1e-4)


def test_bf16_is_as_near_as_transformers(model: tuple[Encoder, Path, Any]) -> None:
    _, folder, reference = model
    texts = {slot: (_text(75, slot), "mean" if slot % 2 else "cls") for slot in range(6)}
    found = _embed(folder, texts, dtype="bfloat16")
    coarse = copy.deepcopy(reference).bfloat16()

    def noise(states: dict[int, torch.Tensor]) -> float:
        exact = (POOLS[pooling](states_of(reference, tokens)) for tokens, pooling in texts.values())
        return float(sum((ours - its).square().mean() for ours, its in zip(states.values(), exact, strict=True)))

    theirs = {slot: POOLS[pooling](states_of(coarse, tokens)) for slot, (tokens, pooling) in texts.items()}
    assert noise(found) ** 0.5 < 1.3 * noise(theirs) ** 0.5


def test_the_check_knows_every_tensor(model: tuple[Encoder, Path, Any]) -> None:
    row, folder, _ = model
    config, checkpoint = load_model_config(folder, "embed"), open_checkpoint(folder)
    expected = config.tensors.found_in(checkpoint.tensors).expected()
    assert check_tensors(checkpoint, expected) == []
    assert all("pooler" in name or "cls." in name for name in set(checkpoint.tensors) - set(expected))
    assert config.max_position_embeddings == row.longest


def test_names_with_and_without_the_module_before_them(tmp_path: Path) -> None:
    """Saved as a part of a larger model, and alone."""
    reference = save_encoder(tmp_path, ROWS["bert"])
    tensors = load_file(tmp_path / "model.safetensors")
    assert "embeddings.word_embeddings.weight" in tensors
    save_file({f"bert.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    text = _text(20, 1)
    (found,) = _embed(tmp_path, {0: (text, "mean")}).values()
    torch.testing.assert_close(found, states_of(reference, text).mean(0), atol=1e-4, rtol=1e-4)


def test_an_encoder_is_for_embeddings(model: tuple[Encoder, Path, Any]) -> None:
    row, folder, _ = model
    with pytest.raises(ModelFilesError, match=f"{row.model_class} generates no text, .* give --task embed"):
        build_runner(engine_config(folder))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "tanh"}, "tanh"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    save_encoder(tmp_path, ROWS["bert"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ModelFilesError, match=message):
        load_model_config(tmp_path, "embed")


def test_a_step_holds_a_whole_text(model: tuple[Encoder, Path, Any], caplog: pytest.LogCaptureFixture) -> None:
    row, folder, _ = model
    runner = build_runner(engine_config(folder, task="embed", max_batch_tokens=50))
    assert runner.max_model_len == 50
    assert f"raise --ragged_flash_max_batch_tokens to {row.longest}" in caplog.text
    assert runner.memory_plan.kv_cache == 0
    with pytest.raises(ValueError, match="max_batch_tokens to 100, or lower --max_model_len to 50"):
        build_runner(engine_config(folder, task="embed", max_batch_tokens=50, max_model_len=100))
    with pytest.raises(ValueError, match=f"lower it to at most {row.longest}"):
        build_runner(engine_config(folder, task="embed", max_model_len=row.longest + 1))


def test_through_the_engine(tmp_path: Path) -> None:
    """Many more texts than fit into a step or into the slots, twice: nothing is cut, cached or mixed up."""
    from engine_support.tiny_text import byte_level_tokenizer, write_tokenizer

    reference = save_encoder(tmp_path, Encoder("Bert", 130, {"vocab_size": 320}))
    write_tokenizer(tmp_path, byte_level_tokenizer())
    llm = LLM(
        tmp_path, task="embed", dtype="float32", max_num_seqs=4, max_batch_tokens=150, num_threads=1,
        extra_eos_token_ids=(),
    )  # fmt: skip
    texts = [_text(length, length) for length in (130, 3, 64, 90, 61, 1, 130, 20, 20, 128, 33)] * 2
    for pooling in ("mean", "cls"):
        found = llm.embed(texts, pooling=pooling)  # type: ignore[arg-type]
        for text, vector in zip(texts, found, strict=True):
            expected = POOLS[pooling](states_of(reference, text))
            torch.testing.assert_close(torch.tensor(vector), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="generates no text"):
        llm.generate([texts[1]])
