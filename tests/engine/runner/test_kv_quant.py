"""The quantised KV cache in the whole engine: what it holds, what it is refused or left out for, and that everything
that reads or moves blocks gives the tokens that it gives alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.feature_load import Result, check_equal, core_for, free_drafts, requests_of, run
from engine_support.runner_driver import Driver, prompt_of
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config, save_model

from blade_llm import LLM, LoRARequest, SamplingParams
from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.kv_quant import METHOD_NUMBERS, MIXED, KVCacheQuant, KVQuant
from blade_llm.models.errors import UnsupportedSettingError
from blade_llm.models.implementation import read_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.draft_config import draft_model_config
from blade_llm.runner.kv_quant import kv_quant_problem, with_kv_quant

DEMO = Path(__file__).parents[3] / "examples" / "demo_model"
REQUESTS = requests_of(12)
ROOMY = {"max_model_len": 256, "max_num_seqs": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("target")
    save_model(folder, "llama", num_hidden_layers=2)
    return folder


ALONE: tuple[KVCacheQuant, ...] = ("int8", "int4_affine", "mix_i8i4", "mix_i4i4")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Result]]:
    """What requests get one after the other, by method."""
    found = {}
    for method in ALONE:
        config = engine_config(folder, kv_cache_quant=method, enable_prompt_cache=False, **ROOMY)
        core = core_for(config)
        found[method] = {name: each for one in REQUESTS for name, each in run(core, [one], stagger=1).items()}
    return found


OTHERWISE: dict[str, dict[str, Any]] = {
    "together": {},
    "preempting": {"max_kv_blocks": 18},
    "small steps": {"max_num_seqs": 3, "max_batch_tokens": 24, "enable_prompt_cache": False},
    "ngram": {"speculative": SpeculativeConfig(method="ngram", gamma=3)},
    "look ahead": {"speculative": SpeculativeConfig(method="look_ahead")},
}


@pytest.mark.parametrize("method", ALONE)
@pytest.mark.parametrize("name", OTHERWISE)
def test_tokens_are_those_that_requests_get_alone(
    folder: Path, alone: dict[str, dict[str, Result]], method: str, name: str
) -> None:
    """fp32; greedy and drawn, with grammars, penalties, log-probabilities, several samples, and a common prefix."""
    config = engine_config(folder, kv_cache_quant=method, **{**ROOMY, **OTHERWISE[name]})
    core = core_for(config, step_seconds=free_drafts())
    compare(run(core, REQUESTS, stagger=1), alone[method])
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.preemptions_total > 0) == (name == "preempting")
    assert (state.cached_tokens_total > 0) == (name != "small steps")


@pytest.mark.parametrize("method", ["int8", "mix_i8i4"])
@pytest.mark.parametrize("ranks", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_ranks_give_the_tokens_of_one(
    folder: Path, alone: dict[str, dict[str, Result]], ranks: dict[str, int], method: KVCacheQuant
) -> None:
    config = engine_config(folder, kv_cache_quant=method, **ROOMY, **ranks)
    runner = ThreadRanks(config)
    core = core_for(config, runner, step_seconds=free_drafts())  # type: ignore[arg-type]
    compare(run(core, REQUESTS, stagger=1), alone[method])
    assert all(each.model_config.kv.quant is not None for each in runner.runners)


def compare(found: dict[str, Result], expected: dict[str, Result]) -> None:
    assert found.keys() == expected.keys()
    for name, result in found.items():
        check_equal(result, expected[name])


@pytest.mark.parametrize("method", ["int8", "int4_affine", "fp8_e4m3", "mix_i8i4"])
@pytest.mark.parametrize("name", ["llama-modules", "gemma2-modules"])
def test_transformers_modules_keep_what_a_family_keeps(tmp_path: Path, name: str, method: KVCacheQuant) -> None:
    """With windows and a soft cap, in chunks, and every byte of the cache."""
    save_row(tmp_path, ROWS[name])
    tokens, caches = [], []
    for impl in ("blade", "transformers"):
        runner = build_runner(engine_config(tmp_path, model_impl=impl, kv_cache_quant=method))
        driver = Driver(runner)
        driver.enter(0, prompt_of(40))
        for count in (17, 23, *[1] * 8):
            driver.step({0: count})
        tokens.append(driver.live[0].tokens)
        assert runner.model_config.kv.quant is not None
        caches.append([torch.stack(each) for each in zip(*runner._kv_cache, strict=True)])  # type: ignore[attr-defined]
    assert tokens[0] == tokens[1]
    for family, modules in zip(*caches, strict=True):
        assert family.any()
        assert (family != modules).float().mean() < 0.01  # sums of another order are rounded to a neighbour


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_8_bits_answer_what_16_bits_answer(dtype: str) -> None:
    prompts = ["The capital of", "def add(a, b):", "A cat sat on the mat and then the cat sat on the mat and"]
    greedy = SamplingParams(max_tokens=24, temperature=0)

    def texts(**options: Any) -> list[str]:
        llm = LLM(DEMO / "model", dtype=dtype, kv_cache_bytes=32 << 20, max_num_seqs=8, num_threads=1, **options)
        found = [output.outputs[0].text for output in llm.generate(prompts, greedy)]
        assert [output.outputs[0].text for output in llm.generate(prompts, greedy)] == found  # of cached prefixes
        return found

    assert texts(kv_cache_dtype="auto") == texts(kv_cache_quant="int8") == texts(kv_cache_dtype="fp8")


@pytest.mark.parametrize("method", MIXED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cached_prefix_gives_what_computing_it_gives(dtype: str, method: KVCacheQuant) -> None:
    """Whoever wrote its blocks: alone, at once in another sequence, and without a prefix cache."""
    common = "def add(a, b):\n    return a + b\n\n\n" * 6
    prompts = [common + end for end in ("print(", "class A", "for i in")]
    greedy = SamplingParams(max_tokens=16, temperature=0)
    found = []
    for cached in (False, True):
        llm = LLM(
            DEMO / "model", dtype=dtype, kv_cache_bytes=32 << 20, max_num_seqs=8, num_threads=1, deterministic=True,
            kv_cache_quant=method, enable_prompt_cache=cached,
        )  # fmt: skip
        found += [[llm.generate([each], greedy)[0].outputs[0].token_ids for each in prompts] for _ in range(2)]
        found.append([each.outputs[0].token_ids for each in llm.generate(prompts, greedy)])
    assert all(each == found[0] for each in found[1:])


@pytest.mark.parametrize("name", ["draft", "eagle3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_draft_has_a_form_of_its_own(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 one native call computes all draft tokens."""
    # However slow the machine is at the start, drafts are made.
    monkeypatch.setattr("blade_llm.runner.torch_runner.measure_steps", lambda *_: free_drafts())
    question = [{"role": "user", "content": "What does len do? What does len do?"}]
    found, accepted = [], []
    for quant in ("no_quant", "int8", "mix_i8i4"):
        speculative = SpeculativeConfig(method=name, draft_model=str(DEMO / name), draft_kv_cache_quant=quant)  # type: ignore[arg-type]
        llm = LLM(
            DEMO / "model", dtype=dtype, kv_cache_bytes=32 << 20, max_model_len=256, num_threads=1,
            kv_cache_quant="int8", speculative=speculative,
        )  # fmt: skip
        (output,) = llm.chat(question, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        found.append(output.outputs[0].token_ids)
        accepted.append(output.accepted_tokens)
    assert min(accepted) > 5
    if dtype == "float32":
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("method", MIXED)
def test_mixed_forms_change_probabilities_by_little(method: KVCacheQuant) -> None:
    """In bf16, whose layers are one native call: of a prompt in one prefill, and in small chunks."""

    def logprobs(form: KVCacheQuant, **options: Any) -> torch.Tensor:
        llm = LLM(
            DEMO / "model", dtype="bfloat16", kv_cache_bytes=32 << 20, max_model_len=512, num_threads=1,
            kv_cache_quant=form, **options,
        )  # fmt: skip
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        (output,) = llm.generate(["def add(a, b):\n    return a + b\n\n\nclass A:\n    pass\n" * 4], params)
        return torch.tensor([each.chosen for each in output.prompt_logprobs or () if each is not None])

    plain = logprobs("no_quant")
    assert len(plain) > 40
    for options in ({}, {"max_batch_tokens": 17}):
        found = logprobs(method, **options)
        assert 0 < (found - plain).abs().mean() < 0.04 * plain.abs().mean()


@pytest.mark.parametrize("method", ["int8", "mix_i8i4"])
def test_adapters_and_8_bits(method: KVCacheQuant) -> None:
    def tokens(**options: Any) -> list[list[int]]:
        llm = LLM(
            DEMO / "model", dtype="float32", kv_cache_bytes=32 << 20, max_model_len=256, num_threads=1,
            enable_lora=True, max_lora_rank=64, **options,
        )  # fmt: skip
        adapters = [None, LoRARequest("mine", 1, str(DEMO / "adapter"))]
        question = [[{"role": "user", "content": "What does len do?"}]] * 2
        found = llm.chat(question, SamplingParams(max_tokens=16, temperature=0), lora_request=adapters)
        return [output.outputs[0].token_ids for output in found]

    plain = tokens()
    assert plain[0] != plain[1]
    assert tokens(kv_cache_quant=method) == plain


@pytest.mark.parametrize(
    ("method", "ratio"),
    [
        ("int8", 1.9), ("fp8_e4m3", 1.9), ("int4", 3.5), ("int4_affine", 3.2),
        ("mix_f852i4", 2.5), ("mix_f843i4", 2.5), ("mix_i8i4", 2.5), ("mix_i4i4", 3.4),
    ],
)  # fmt: skip
def test_more_tokens_fit_and_all_say_the_same(tmp_path: Path, method: KVCacheQuant, ratio: float) -> None:
    save_model(tmp_path, "llama", head_dim=64)
    sizes = {"kv_cache_bytes": 4 << 20, "dtype": "bfloat16", "max_num_seqs": 200}
    plain = build_runner(engine_config(tmp_path, **sizes)).memory_plan
    config = engine_config(tmp_path, kv_cache_quant=method, **sizes)
    runner = build_runner(config)
    plan = runner.memory_plan
    assert plan.kv_tokens > ratio * plain.kv_tokens
    assert plan.kv_cache <= 4 << 20
    own = sum(each.nbytes for layer in runner._kv_cache for each in layer)  # type: ignore[attr-defined]
    assert own == (plan.kv_blocks + 1) * plan.kv_block_bytes  # one is for padding
    item = check_memory_fit(config, limit=64 << 30)
    assert (item.status, f"({plan.kv_blocks} blocks, {plan.kv_tokens} tokens" in item.detail) == ("PASS", True)


def test_a_drafts_form_counts_in_the_plan() -> None:
    def block_bytes(quant: KVCacheQuant) -> int:
        speculative = SpeculativeConfig(method="draft", draft_model=str(DEMO / "draft"), draft_kv_cache_quant=quant)
        config = EngineConfig(model=str(DEMO / "model"), served_names=("m",), speculative=speculative)
        draft = draft_model_config(config, read_model_config(DEMO / "model"), "bfloat16")
        assert draft is not None
        return draft.block_bytes

    assert block_bytes("no_quant") > 1.8 * block_bytes("int8")


def test_every_form_is_one_of_rows_or_of_two_kinds_of_them(folder: Path) -> None:
    assert {*MIXED, *METHOD_NUMBERS, "no_quant"} == {*get_args(KVCacheQuant)}
    model = read_model_config(folder)
    for form in get_args(KVCacheQuant)[1:]:
        assert kv_quant_problem(model, form) is None
        assert with_kv_quant(model, form).kv.quant == KVQuant.of(form)


def test_models_without_such_a_cache_are_served_without(folder: Path) -> None:
    model = read_model_config(folder)
    latent = replace(model, kv=replace(model.kv, value_part=8))
    encoder = replace(model, kv=replace(model.kv, num_layers=0))
    for other, reason in ((latent, "latent attention"), (encoder, "encoder")):
        assert reason in (kv_quant_problem(other, "int8") or "")
        assert with_kv_quant(other, "int8").kv.quant is None
        assert kv_quant_problem(other, "no_quant") is None


def test_parts_that_do_not_divide_a_head(folder: Path) -> None:
    with pytest.raises(UnsupportedSettingError, match="sub_heads is 3, which does not divide a head of 8 elements"):
        build_runner(engine_config(folder, kv_cache_quant="int8", kv_cache_quant_sub_heads=3))
    item = check_memory_fit(engine_config(folder, kv_cache_quant="int8", kv_cache_quant_sub_heads=3), limit=1 << 40)
    assert (item.status, "does not divide" in item.detail) == ("FAILED", True)
    draft = {"draft_kv_cache_quant": "int8", "draft_kv_cache_quant_sub_heads": 7}
    speculative = SpeculativeConfig(method="draft", draft_model=str(folder), **draft)
    with pytest.raises(UnsupportedSettingError, match=r"--draft\.kv_cache_quant_sub_heads is 7, which does not divide"):
        build_runner(engine_config(folder, speculative=speculative))
    assert "needs heads of an even width, not 7; give" in (KVQuant("int4").problem(7) or "")
    runner = build_runner(engine_config(folder, kv_cache_quant="int8", kv_cache_quant_sub_heads=4))
    assert runner.memory_plan.kv_block_bytes == 16 * 2 * 2 * 2 * (8 + 4 * 2)
    with pytest.raises(ValueError, match=r"--kv_cache_quant_sub_heads 2 divides .* which is nothing"):
        engine_config(folder, kv_cache_quant_sub_heads=2)
    with pytest.raises(ValueError, match=r"--draft\.kv_cache_quant_sub_heads 2 divides .* which is nothing"):
        SpeculativeConfig(method="ngram", draft_kv_cache_quant_sub_heads=2)
