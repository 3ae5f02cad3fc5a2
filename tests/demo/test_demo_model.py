"""The demo model kept in the repository loads in other libraries unchanged and does what its recipe promises."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.figures import Figure
from examples.demo_model import drafting, head, measure
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from blade_llm.engine.build import build_core

ROOT = measure.HERE


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {figure.name: figure for figure in measure.measure(ROOT)}


def test_every_figure_reaches_its_target(figures: dict[str, Figure]) -> None:
    missed = [str(figure) for figure in figures.values() if not figure.reached]
    assert not missed


def test_targets_are_those_promised(figures: dict[str, Figure]) -> None:
    promised = {
        "demo_answers_right": 16,
        "demo_adapter_changes": 16,
        "demo_draft_agreement": 50,
        "demo_model_parameters": 3_200_000,
        "demo_draft_parameters": 400_000,
        "demo_size": 9_000_000,
    }
    assert {name: figures[name].target for name in promised} == promised
    assert len(measure.listed_questions()) == 20


def test_everything_in_the_folder_is_small() -> None:
    tracked = [file for file in ROOT.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in tracked) <= measure.MAX_BYTES


@pytest.mark.parametrize("name", ["model", "draft"])
def test_transformers_loads_it_unchanged(name: str) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(ROOT / name, output_loading_info=True)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    assert model.config.max_position_embeddings >= 2048
    tokenizer = AutoTokenizer.from_pretrained(ROOT / name)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    assert len(tokenizer) <= model.config.vocab_size


@pytest.mark.parametrize("name", ["model/model", "draft/model", "adapter/adapter_model"])
def test_weights_are_bf16_safetensors(name: str) -> None:
    with safe_open(ROOT / f"{name}.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_draft_has_the_same_tokenizer() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (ROOT / "draft" / file).read_bytes() == (ROOT / "model" / file).read_bytes()


@pytest.mark.parametrize(
    "text", ["What does len do?", "naïve café 你好 🐍\n\n  tabs\t1234 don't", "<|im_start|>user\nhi"]
)
def test_tokenizer_means_the_same_in_both_libraries_and_loses_nothing(text: str) -> None:
    raw = Tokenizer.from_file(str(ROOT / "model" / "tokenizer.json"))
    wrapped = AutoTokenizer.from_pretrained(ROOT / "model")
    ids = wrapped(text)["input_ids"]
    assert raw.encode(text).ids == ids
    assert wrapped.decode(ids) == text


def test_chat_template_renders_what_the_model_was_trained_on() -> None:
    from examples.demo_model.conversations import encode

    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What does len do?"},
        {"role": "assistant", "content": "It counts."},
    ]
    wrapped = AutoTokenizer.from_pretrained(ROOT / "model")
    example = encode(messages, Tokenizer.from_file(str(ROOT / "model" / "tokenizer.json")))
    assert wrapped.apply_chat_template(messages, return_dict=False) == example.ids
    learned = [token for token, learn in zip(example.ids, example.learn, strict=True) if learn]
    assert wrapped.decode(learned) == "It counts.<|im_end|>"
    prompt = wrapped.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_adapter_follows_the_peft_layout_and_names_no_machine() -> None:
    config = json.loads((ROOT / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["peft_type"] == "LORA"
    assert config["r"] == 8
    assert not Path(config["base_model_name_or_path"]).is_absolute()
    with safe_open(ROOT / "adapter" / "adapter_model.safetensors", "pt") as weights:
        keys = list(weights.keys())
    assert keys
    assert all(key.startswith("base_model.model.model.layers.") for key in keys)


def test_the_head_follows_the_public_layout_and_is_small() -> None:
    assert sorted(file.name for file in (ROOT / "eagle3").iterdir()) == ["config.json", "model.safetensors"]
    weights = load_file(ROOT / "eagle3" / "model.safetensors")
    tokens = weights.pop("d2t") + torch.arange(head.VOCAB_SIZE)
    assert weights.pop("t2d").nonzero()[:, 0].tolist() == tokens.tolist()
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert sum(weight.numel() for weight in weights.values()) <= 1_000_000


def test_the_head_drafts_what_the_model_says_and_changes_no_token() -> None:
    asked = drafting.prompts(ROOT)[:6]
    plain = build_core(drafting.engine_config(ROOT, None, "float32"))
    expected = [drafting.answer(plain, prompt) for prompt in asked]
    speculative = drafting.draft_head(ROOT, 4)
    core = drafting.always_drafting(drafting.engine_config(ROOT, speculative, "float32"))
    answers, accepted, tokens = drafting.drafted(core, asked)
    assert answers == expected
    assert accepted >= 0.75
    assert tokens >= 3.0


def test_a_longer_conversation_and_a_system_message_do_not_confuse_it() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "model")
    model = measure.load(ROOT / "model")
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! Ask me something about Python, for example: What does len do?"},
        {"role": "user", "content": "What does len do?"},
    ]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answer = tokenizer.decode(measure.greedy_answer(model, prompt), skip_special_tokens=True)
    assert "the number of items in a container" in answer
