"""The recipe itself, on a tiny shape: training lowers the loss, is reproducible, and writes what it says."""

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from examples.demo_model import corpus, head, measure, train
from examples.demo_model.conversations import pirate, plain
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen2ForCausalLM

from blade_llm.models.heads.eagle3 import read_eagle3
from blade_llm.models.implementation import read_model_config

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


def trained(tokenizer: Tokenizer, passes: int = 8, layers: int = 1) -> tuple[Qwen2ForCausalLM, list[float]]:
    torch.manual_seed(0)
    model = train.build({**SHAPE, "num_hidden_layers": layers})
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


@pytest.fixture(scope="module")
def target(tokenizer: Tokenizer) -> Qwen2ForCausalLM:
    """With as many layers as a head reads."""
    model, _ = trained(tokenizer, layers=4)
    return model.requires_grad_(False)


def trained_head(tokenizer: Tokenizer, target: Qwen2ForCausalLM) -> tuple[head.Head, list[float]]:
    torch.manual_seed(0)
    run = train.batches(4, corpus.facts()[:20], tokenizer, 5, plain, tokens=256)
    made = head.Head(target, head.frequent_tokens(run))
    losses: list[float] = []
    loss_of = partial(head.head_loss, target)
    train.fit(made, run, 1e-2, lambda share, loss: losses.append(loss_of(made, run[0]).item()), loss_of)
    return made, losses


def test_training_a_head_lowers_its_loss_and_repeats_exactly(tokenizer: Tokenizer, target: Qwen2ForCausalLM) -> None:
    before = [weight.clone() for weight in target.parameters()]
    first, losses = trained_head(tokenizer, target)
    second, _ = trained_head(tokenizer, target)
    assert losses[-1] < 0.9 * losses[0]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(one, other) for one, other in zip(before, target.parameters(), strict=True))


def test_all_positions_at_once_are_drafted_as_one_after_the_other(target: Qwen2ForCausalLM) -> None:
    """The training-time test: each step after the first goes on from the head's own state, and sees those before it."""
    torch.manual_seed(1)
    made, length, steps = head.Head(target, torch.arange(100)), 9, 4
    embedded = torch.randn(2, length, SHAPE["hidden_size"])
    states = torch.randn(2, length, len(head.AFTER) * SHAPE["hidden_size"])
    with torch.no_grad():
        together = made(embedded, states, steps)
        fused = made.fc(states)
        for begin in range(length - steps + 1):
            known = fused[:, : begin + 1]
            for step in range(steps):
                place = begin + step
                out = made.midlayer(embedded[:, : place + 1], known, [])[:, -1]
                torch.testing.assert_close(together[step][:, place], out, rtol=1e-4, atol=1e-5)
                known = torch.cat([known, out[:, None]], 1)


def test_a_head_is_written_for_its_model(tokenizer: Tokenizer, target: Qwen2ForCausalLM, tmp_path: Path) -> None:
    """The engine reads it; the folder names the tokens that it can draft, the answers' most frequent ones."""
    run = train.batches(1, corpus.facts()[:20], tokenizer, 5, plain, tokens=256)
    tokens = head.frequent_tokens(run)
    learned = {
        token for batch in run for each in batch for token, learn in zip(each.ids, each.learn, strict=True) if learn
    }
    assert set(tokens.tolist()) == learned  # fewer than there is room for
    train.save(copy.deepcopy(target), tokenizer, tmp_path / "model")
    train.train_head(tmp_path / "eagle3", tmp_path / "model", run, lambda share, loss: None)
    config = read_eagle3(tmp_path / "eagle3", read_model_config(tmp_path / "model"))
    assert config.decoder.prediction.after == head.AFTER
    assert config.decoder.prediction.vocab_size == len(tokens)
