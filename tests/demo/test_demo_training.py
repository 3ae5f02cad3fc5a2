"""The recipe itself, on a tiny shape: training lowers the loss, is reproducible, and writes what it says."""

import json
from pathlib import Path

import pytest
import torch
from examples.demo_model import corpus, measure, train
from examples.demo_model.conversations import pirate, plain
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen2ForCausalLM

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(measure.HERE / "model" / "tokenizer.json"))


def trained(tokenizer: Tokenizer, passes: int = 8) -> tuple[Qwen2ForCausalLM, list[float]]:
    torch.manual_seed(0)
    model = train.build(SHAPE)
    losses: list[float] = []
    run = train.batches(passes, corpus.facts()[:20], tokenizer, 0, plain, tokens=256)
    train.fit(model, run, 1e-2, lambda share, loss: losses.append(loss))
    return model, losses


def test_training_lowers_the_loss_and_repeats_exactly(tokenizer: Tokenizer) -> None:
    first, losses = trained(tokenizer)
    second, _ = trained(tokenizer)
    assert losses[-1] < 0.7 * losses[0]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_batches_stay_within_their_tokens(tokenizer: Tokenizer) -> None:
    for batch in train.batches(2, corpus.facts(), tokenizer, 0, plain, tokens=512):
        assert batch
        assert len(batch) == 1 or len(batch) * max(len(example.ids) for example in batch) <= 512


def test_loss_counts_answers_only_and_ignores_padding(tokenizer: Tokenizer) -> None:
    model, _ = trained(tokenizer, passes=1)
    examples = [example for batch in train.batches(1, corpus.facts()[:6], tokenizer, 1, plain) for example in batch]
    counts = [sum(example.learn) for example in examples]
    with torch.no_grad():
        together = train.batch_loss(model, examples)
        alone = [train.batch_loss(model, [example]) for example in examples]
    expected = sum(loss * count for loss, count in zip(alone, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)


def test_model_and_adapter_are_written_and_read_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, _ = trained(tokenizer, passes=1)
    train.save(model, tokenizer, tmp_path / "model")
    run = train.batches(3, corpus.facts()[:20], tokenizer, 4, pirate, tokens=256)
    train.train_adapter(tmp_path / "adapter", tmp_path / "model", run, lambda share, loss: None)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["target_modules"] == sorted(settings["target_modules"])
    prompt = torch.tensor([measure.prompt_ids(AutoTokenizer.from_pretrained(tmp_path / "model"), "What is abs?")])
    with torch.no_grad():
        base = measure.load(tmp_path / "model")(prompt).logits
        adapted = measure.load_adapted(tmp_path / "model", tmp_path / "adapter")(prompt).logits
    assert base.shape == (1, prompt.shape[1], train.VOCAB_SIZE)
    assert not torch.allclose(base, adapted)
