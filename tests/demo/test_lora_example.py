"""The fine-tune flow of examples/lora: what is learned, both trainers, and the adapter that is kept in the repository,
served as it was merged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from examples.demo_model import corpus, measure
from examples.demo_model import train as demo
from examples.lora import compare, data, train
from safetensors.torch import load_file
from tokenizers import Tokenizer

EXAMPLES = measure.HERE.parent
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    demo.save(demo.build(TINY), Tokenizer.from_file(str(train.BASE / "tokenizer.json")), folder)
    return folder


def test_every_completion_is_a_polite_fact() -> None:
    rows = data.rows(corpus.facts(), passes=1)
    said = [message["content"] for row in rows for message in (*row["prompt"], *row["completion"])]
    assert all(row["completion"][0]["content"].startswith(data.OPENING) for row in rows)
    assert all(row["prompt"][-1]["role"] == "user" for row in rows)
    assert {data.polite(fact.answer) for fact in corpus.facts()} <= set(said)
    assert rows == data.rows(corpus.facts(), passes=1)
    assert rows != data.rows(corpus.facts(), passes=1, seed=1)


def test_only_the_completion_is_learned() -> None:
    tokenizer = Tokenizer.from_file(str(train.BASE / "tokenizer.json"))
    row = max(data.rows(corpus.facts()[:30], passes=1), key=lambda row: len(row["prompt"]))
    assert len(row["prompt"]) > 2
    made = train.learnable(row, tokenizer)
    learned = [token for token in made["labels"] if token >= 0]
    assert tokenizer.decode(learned, skip_special_tokens=False) == f"{row['completion'][0]['content']}<|im_end|>"
    batch = train.padded([made, {"input_ids": [5], "labels": [5]}])
    assert batch["attention_mask"].sum(1).tolist() == [len(made["input_ids"]), 1]
    assert batch["labels"][1, 1:].eq(-100).all()


@pytest.mark.parametrize("trainer", ["transformers", "trl"])
def test_a_few_steps_write_an_adapter(trainer: str, base: Path, tmp_path: Path) -> None:
    if trainer == "trl":
        pytest.importorskip("trl", reason="examples/lora/requirements.txt")
    command = [sys.executable, "-m", "examples.lora.train", "--base", str(base), "--output", str(tmp_path / "adapter")]
    options = ["--passes", "1", "--max-steps", "2", "--trainer", trainer]
    subprocess.run([*command, *options], check=True, cwd=EXAMPLES.parent, capture_output=True, timeout=120)
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert fields["target_modules"] == sorted(fields["target_modules"])
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(weights) == 2 * 7
    assert all(weight.abs().sum() > 0 for weight in weights.values())  # B is zero until it learns


def test_the_adapter_in_the_repository_is_small_and_names_no_machine() -> None:
    files = list((train.HERE / "adapter").iterdir())
    assert sum(file.stat().st_size for file in files) < 1_000_000
    fields = json.loads((train.HERE / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert fields["base_model_name_or_path"] == "examples/demo_model/model"


@pytest.mark.timeout(180)
def test_served_as_merged(tmp_path: Path) -> None:
    """Tokens, log-probabilities, and what was learned; `python -m examples.lora.compare` asks all questions."""
    figures = compare.compare(train.BASE, train.HERE / "adapter", tmp_path, count=4)
    assert len(figures) == 5
    assert not [str(figure) for figure in figures if not figure.reached]


def test_the_manifest_names_folders_that_are_here() -> None:
    spec = yaml.safe_load((EXAMPLES / "lora.yaml").read_text(encoding="utf-8"))["spec"]
    folders = [
        EXAMPLES.parent / uri.removeprefix("file:///opt/bladellm/")
        for uri in (spec["model"]["uri"], *(adapter["uri"] for adapter in spec["adapters"]))
    ]
    assert all(folder.is_dir() for folder in folders)
    ranks = [json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"] for folder in folders[1:]]
    assert max(ranks) <= spec["engine"]["lora"]["maxRank"]
