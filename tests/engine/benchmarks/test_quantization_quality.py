"""What `make bench-quant` stands on: its texts, its outliers, its perplexity and what it says of them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import peers
from benchmarks.quantization import __main__ as bench
from benchmarks.quantization import corpus, cost, prose, table, train
from benchmarks.quantization.methods import METHODS
from benchmarks.quantization.outliers import with_outliers
from benchmarks.quantization.perplexity import perplexity
from examples.demo_model.tokenizer import train_tokenizer
from transformers import LlamaForCausalLM

from blade_llm import LLM

DRAFT = Path(__file__).parents[3] / "examples" / "demo_model" / "draft"
GOOD = {
    "fp32": 30.0,
    "bf16": 30.0,
    "minmax-8": 30.0,
    "minmax-4": 33.0,
    "gptq-4": 31.0,
    "gptq-4-head": 31.2,
    "awq-4": 31.0,
    "smoothquant+-4": 31.0,
    "minmax-3": 90.0,
    "gptq-3": 38.0,
    "w8a8-minmax": 40.0,
    "w8a8-smoothquant": 30.2,
    "w8a8-smoothquant_gptq": 30.2,
    "kv-int8": 30.01,
    "kv-int4": 30.5,
}
"""Perplexities of which every bound holds."""
BOUNDS = table.BOUNDS


def paragraph(number: int) -> str:
    return f"Paragraph number {number} has enough letters in it to be taken for a sentence that somebody wrote."


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 120 documents; all have one paragraph in common."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for document in range(120):
        own = [paragraph(1000 * document + number) for number in range(8)]
        (folder / f"{document}.txt").write_text("\n\n".join([paragraph(-1), *own]), encoding="utf-8")
    monkeypatch.setenv("QUANT_CORPUS", str(folder))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model as the recipe writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "VOCAB_SIZE", 512)
        patch.setattr(train, "SHAPE", train.SHAPE | {"hidden_size": 64, "intermediate_size": 96})
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("recipe") / "model"
        texts = [paragraph(number) for number in range(200)]
        train.save(train.build(), train_tokenizer(texts, 512), folder, {"steps": 0})
    return folder


def test_parts_have_no_paragraph_in_common_and_are_the_same_again(texts: Path, tmp_path: Path) -> None:
    found = corpus.load_corpus(tmp_path)
    parts = [set("\n".join(part).split("\n")) for part in (found.train, found.calibration, found.held_out)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 120 * 8 + 1
    again = corpus.load_corpus(tmp_path)
    assert again == found
    assert again.digest == found.digest


def test_another_document_changes_the_digest_but_no_other_document_s_part(texts: Path, tmp_path: Path) -> None:
    before = corpus.load_corpus(tmp_path)
    (texts / "new.txt").write_text("\n\n".join(map(paragraph, range(-20, -10))), encoding="utf-8")
    after = corpus.load_corpus(tmp_path)
    assert after.digest != before.digest
    for part in ("train", "calibration", "held_out"):
        assert set(getattr(before, part)) <= set(getattr(after, part))


def test_too_few_texts_are_refused(texts: Path, tmp_path: Path) -> None:
    for file in texts.glob("1*.txt"):
        file.unlink()
    for file in sorted(texts.glob("*.txt"))[2:]:
        file.unlink()
    with pytest.raises(corpus.CorpusError, match=r"2 files .* give 100 or more"):
        corpus.load_corpus(tmp_path)


def test_without_debian_s_tools_the_message_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(corpus.CorpusError, match=r"perl-doc, git-doc.*no apt-get.*QUANT_CORPUS"):
        corpus.load_corpus(tmp_path)
    assert not (tmp_path / "corpus").exists()


def test_a_failed_download_says_what_to_run_and_leaves_no_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in (("apt-get", 1), ("apt-cache", 0), ("dpkg-deb", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(corpus.CorpusError, match="Unable to locate package; run `apt-get update`"):
        corpus.load_corpus(tmp_path / "cache")
    assert not (tmp_path / "cache" / "corpus").exists()


def test_prose_of_pages() -> None:
    sentence = "This sentence is long enough to be a paragraph, and it is made of letters for the most part."
    page = f"<h1>Title</h1><p>{sentence[:40]}<em>{sentence[40:]}</em><pre>code {sentence}</pre><p>short<p>{'12, ' * 40}"
    assert prose.html_paragraphs(page) == [sentence]
    pod = f"=head1 {sentence}\n\n{sentence[:-1]}: L<C<print>|perlfunc/print>, B<< a > b >>.X<index>\n\n    {sentence}\n"
    assert prose.pod_paragraphs(pod) == [f"{sentence[:-1]}: print, a > b."]


def test_calibration_lines_begin_with_the_beginning_of_each_document() -> None:
    lines = [json.loads(line)["text"] for line in bench.calibration_lines(["a" * 300, "b" * 2000, "c" * 850])]
    assert [each[0] for each in lines] == ["b", "c", "b", "b"]
    assert [len(each) for each in lines] == [800, 800, 800, 400]
    many = bench.calibration_lines(["d" * 800] * 500)
    assert len(many) == bench.CALIBRATION_TEXTS


def test_training_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "VOCAB_SIZE", 64)
    monkeypatch.setattr(train, "SHAPE", train.SHAPE | {"hidden_size": 32, "intermediate_size": 32})
    monkeypatch.setattr(train, "SAVE_EVERY", 2)
    tokens = torch.randint(0, 64, (40, 16), generator=torch.Generator().manual_seed(0))

    def run(name: str, interrupt: int | None) -> dict[str, Any]:
        torch.manual_seed(0)
        model = train.build()
        losses = 0
        forward = model.forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal losses
            losses += 1
            if losses == interrupt:
                raise KeyboardInterrupt
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", counted)
        train.fit(model, tokens, tmp_path / name, steps=5)
        return model.state_dict()

    whole = run("whole", None)
    with pytest.raises(KeyboardInterrupt):
        run("stopped", 4)
    resumed = run("stopped", None)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_outlier_channels_change_activations_but_not_the_function(model: Path, tmp_path: Path) -> None:
    channels = with_outliers(model, tmp_path / "outliers", channels=2, factor=64.0)
    assert len(set(channels)) == 2
    ids = torch.arange(3, 60)[None]
    logits, inputs = [], []
    for folder in (model, tmp_path / "outliers"):
        loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        seen: list[torch.Tensor] = []
        loaded.model.layers[2].mlp.up_proj.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0][0]))
        with torch.no_grad():
            logits.append(loaded(ids).logits)
        inputs.append(seen[0].abs().amax(0))
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)
    grown = inputs[1] / inputs[0]
    assert torch.allclose(grown[channels], torch.tensor(64.0), rtol=1e-4)
    grown[channels] = 1.0
    assert torch.allclose(grown, torch.ones_like(grown), rtol=1e-4)


def test_outliers_by_another_factor_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"10\.0 is not a power of two"):
        with_outliers(model, tmp_path / "outliers", factor=10.0)
    assert not (tmp_path / "outliers").exists()


def test_perplexity_is_the_one_of_transformers(model: Path) -> None:
    windows = torch.randint(3, 512, (10, 40), generator=torch.Generator().manual_seed(0))
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        loss = reference(input_ids=windows, labels=windows).loss
    llm = LLM(model, dtype="float32", enable_prompt_cache=False, kv_cache_bytes=1 << 24)
    ours = perplexity(llm, windows.tolist())
    assert ours == pytest.approx(math.exp(loss.item()), rel=1e-3)
    assert perplexity(llm, windows[:1].tolist()) != pytest.approx(ours, rel=1e-6)


def test_all_bounds_can_be_met() -> None:
    lines, figures, met = table.verdicts(GOOD, "model", BOUNDS)
    assert met
    assert len(lines) == len(figures) == len(BOUNDS)
    assert all(line.startswith("met") for line in lines)


@pytest.mark.parametrize(
    ("row", "value", "missed"),
    [
        ("gptq-4", 33.1, {"gptq-4-to-minmax-4", "gptq-4-to-bf16"}),
        ("gptq-4", 32.8, {"gptq-4-to-bf16"}),
        ("awq-4", 33.1, {"awq-4-to-minmax-4"}),
        ("smoothquant+-4", 33.1, {"smoothquant+-4-to-minmax-4"}),
        ("minmax-3", 47.0, {"loss-of-minmax-3-to-gptq-3"}),
        ("gptq-3", 42.7, {"gptq-3-to-bf16"}),
        ("w8a8-smoothquant", 30.7, {"w8a8-smoothquant-to-bf16"}),
        ("w8a8-smoothquant", 41.0, {"w8a8-smoothquant-to-bf16", "w8a8-smoothquant-to-w8a8-minmax"}),
        ("w8a8-smoothquant_gptq", 30.7, {"w8a8-smoothquant_gptq-to-bf16"}),
        ("kv-int8", 30.2, {"kv-int8-to-bf16"}),
        ("kv-int4", 31.3, {"kv-int4-to-bf16"}),
        ("kv-int4", None, {"kv-int4-to-bf16"}),
        ("kv-int8", math.nan, {"kv-int8-to-bf16"}),
        ("minmax-3", math.inf, {"loss-of-minmax-3-to-gptq-3"}),
        ("gptq-3", 30.0, set()),
    ],
)
def test_a_bound_is_missed(row: str, value: float | None, missed: set[str]) -> None:
    lines, _, met = table.verdicts(GOOD | {row: value}, "model", BOUNDS)
    assert met == (not missed)
    assert {line.split()[1] for line in lines if line.startswith("MISSED")} == missed


def test_the_file_of_results_has_the_perplexities_of_all_rows_that_ran() -> None:
    found = {figure.name: figure.value for figure in table.figures_of({**GOOD, "kv-int4": None}, "trained")}
    assert found == {f"trained-{name}-perplexity": value for name, value in GOOD.items() if name != "kv-int4"}


def test_a_row_that_is_not_there_has_no_number() -> None:
    lines = table.table(GOOD | {"kv-int4": None})
    assert "| KV cache int4 | not available | |" in lines
    assert "| weights 4 bits, groups of 64, GPTQ | 31.000 | +3.33 % |" in lines
    assert len(lines) == 2 + len(GOOD)


def test_every_bound_is_of_rows_that_exist() -> None:
    names = {method.name for method in METHODS}
    assert {each for bound in BOUNDS for each in (bound.row, bound.other)} <= names
    assert len(names) == len(METHODS)


def test_memory_is_a_program_s_peak_beyond_the_interpreter_s() -> None:
    holds = "import time; x = bytearray({} << 20); time.sleep(1)"
    small, large = (cost.run([sys.executable, "-c", holds.format(size)]) for size in (1, 200))
    assert 195 < (large.peak_rss - small.peak_rss) / (1 << 20) < 215
    assert 195 < (large.anonymous - small.anonymous) / (1 << 20) < 215
    config = {"vocab_size": 1000, "hidden_size": 10, "num_hidden_layers": 4}
    interpreter = cost.Run(0.0, 0.0, 1_000_000, 0)
    most = 60_000 + (20 + 2) * 10_000  # the 24 layers of Qwen2.5-0.5B, and two more
    reached = [
        cost.figures(60_000, config, cost.Run(1.0, 1.0, 1_000_000 + used, 9_000_000), interpreter)[-1].reached
        for used in (most, most + 1)
    ]
    assert reached == [True, False]
    with pytest.raises(Exception, match="exit status 3"):
        cost.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_checkpoint_that_is_compared_with_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CACHE", tmp_path)
    (tmp_path / "models").mkdir()
    folder = Path(peers.OURS_W4A16.prepare(DRAFT)["model"])
    [group] = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    weights = group["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 64, False)
    assert peers.OURS_W4A16.prepare(DRAFT) == {"model": str(folder)}


def test_a_flag_that_is_refused_is_told_from_a_failure(model: Path, tmp_path: Path) -> None:
    output = ["--output_dir", str(tmp_path / "out")]
    assert bench._run("blade_llm.cli.quantize", "--model", str(model), *output, "--bit", "5") is None
    with pytest.raises(Exception, match="returned non-zero exit status 1"):
        bench._run("blade_llm.cli.quantize", "--model", str(tmp_path / "nothing"), *output)
