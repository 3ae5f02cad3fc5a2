"""The offline API on the real engine, and the same tokens from a real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from engine_support.server_process import running_server

from blade_llm import LLM, SamplingParams
from blade_llm.models.errors import ModelFilesError
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.text.errors import TokenizerFilesError

OPTIONS = {"load_format": "dummy", "dtype": "float32", "kv_cache_bytes": 32 << 20, "num_threads": 1, "max_num_seqs": 8}
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(text_model: Path) -> LLM:
    return LLM(model=text_model, **OPTIONS)


def test_one_prompt_or_many(llm: LLM) -> None:
    (one,) = llm.generate("hello", GREEDY)
    assert one.prompt == "hello"
    assert one.prompt_token_ids == llm.tokenizer.encode("hello")
    (only,) = one.outputs
    assert only.finish_reason == "length"
    assert len(only.token_ids) == 12
    assert only.text == llm.tokenizer.decode(only.token_ids)
    many = llm.generate(["world", "hello", llm.tokenizer.encode("hello")], GREEDY)
    assert [output.prompt for output in many] == ["world", "hello", None]
    assert many[1].outputs[0].token_ids == many[2].outputs[0].token_ids == only.token_ids


def test_samples_differ_and_seeds_repeat(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    first, second = (llm.generate("hello", params, n=3)[0].outputs for _ in range(2))
    assert [output.index for output in first] == [0, 1, 2]
    assert len({tuple(output.token_ids) for output in first}) == 3
    assert [output.token_ids for output in first] == [output.token_ids for output in second]


def test_vllms_names_of_arguments_and_a_seed_for_all(text_model: Path, llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    options = {**OPTIONS, "max_num_batched_tokens": 64, "tokenizer": text_model, "enforce_eager": True, "swap_space": 4}

    def outputs(seed: int) -> list[list[int]]:
        seeded = LLM(text_model, seed=seed, **options)
        return [seeded.generate("hello", params)[0].outputs[0].token_ids for _ in range(2)]

    first = outputs(1)
    assert first == outputs(1) != outputs(2)
    assert first[0] != first[1]
    with pytest.raises(ValueError, match=r"config\.json"):
        LLM(text_model, hf_overrides={"x": 1})
    with pytest.raises(TypeError, match="mistaken"):
        LLM(text_model, mistaken=1, **OPTIONS)


def test_stop_strings_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, seed=11, ignore_eos=True, logprobs=2)
    whole = llm.generate("hello", params)[0].outputs[0]
    assert whole.logprobs is not None
    assert len(whole.logprobs) == len(whole.token_ids) == 40
    assert all(len(entry.token_ids) == 2 and entry.chosen <= 0 for entry in whole.logprobs)
    stop = whole.text[8:11]
    cut = llm.generate("hello", msgspec.structs.replace(params, stop=(stop,)))[0].outputs[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == whole.text[: whole.text.index(stop)]


def test_what_a_device_that_is_ahead_brings_after_the_end_is_left_out(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of step() may deliver several outputs of a request."""
    params = SamplingParams(max_tokens=40, seed=11, ignore_eos=True)
    whole = llm.generate("hello", params)[0].outputs[0]
    stop = whole.text[8:11]
    step = llm._core.step
    monkeypatch.setattr(llm._core, "step", lambda: [output for _ in range(40) for output in step()])
    cut, other = llm.generate(["hello", "bye"], [msgspec.structs.replace(params, stop=(stop,)), params])
    assert cut.outputs[0].text == whole.text[: whole.text.index(stop)]
    assert len(other.outputs[0].token_ids) == 40


def test_chat_uses_the_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hello"}], GREEDY)
    assert output.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == 1
    two = llm.chat([[{"role": "user", "content": "hello"}], [{"role": "user", "content": "bye"}]], GREEDY)
    assert two[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert len(two) == 2


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ("hello", SamplingParams(temperature=-1), "temperature"),
        ("", SamplingParams(), "empty"),
        ([1, 9999], SamplingParams(), "9999"),
        ("hello", SamplingParams(stop_token_ids=(9999,), min_tokens=1), "9999"),
        ("hello", SamplingParams(max_tokens=4000), "max_model_len"),
        ("hello", SamplingParams(logit_bias={9999: 1.0}), "9999"),
        ("hello", SamplingParams(allowed_token_ids=(9999,)), "9999"),
        ("hello", SamplingParams(bad_words=("",)), "bad_words"),
        (["a", "b"], [SamplingParams()], "2 prompts but 1"),
    ],
)
def test_bad_input(llm: LLM, prompt: object, params: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        llm.generate(prompt, params)  # type: ignore[arg-type]
    assert llm.generate("hello", GREEDY)[0].outputs[0].token_ids, "the next call works"


def test_no_outputs_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="n must be at least 1"):
        llm.generate("hello", GREEDY, n=0)


def test_samples_share_their_prompt(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("the quick brown fox " * 8)
    before = llm._core.scheduler.stats().prompt_tokens_total
    (result,) = llm.generate(prompt, SamplingParams(max_tokens=6, seed=5, ignore_eos=True, prompt_logprobs=1), n=12)
    assert llm._core.scheduler.stats().prompt_tokens_total - before == len(prompt)
    assert [output.index for output in result.outputs] == list(range(12))
    assert len({tuple(output.token_ids) for output in result.outputs}) == 12
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert all(entry is not None and len(entry.token_ids) == 1 for entry in result.prompt_logprobs[1:])
    assert len(result.prompt_logprobs) == len(prompt)


def test_beams_come_best_first(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, beam_width=4, logprobs=0, ignore_eos=True)
    first, second, third = llm.generate("hello", params, n=3)[0].outputs
    scores = [sum(entry.chosen for entry in output.logprobs or []) for output in (first, second, third)]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(output.token_ids) for output in (first, second, third)}) == 3
    assert llm.generate("hello", params)[0].outputs[0].token_ids == first.token_ids
    with pytest.raises(ValueError, match="beam_width is 4, but n asks for 5"):
        llm.generate("hello", params, n=5)


def test_a_grammar_spec_holds_for_every_output(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, seed=1, grammar_spec=GrammarSpec("choice", '["yes", "no, never"]'))
    (result,) = llm.generate("hello", params, n=6)
    assert {output.text for output in result.outputs} <= {"yes", "no, never"}
    assert {output.finish_reason for output in result.outputs} == {"stop"}
    with pytest.raises(ValueError, match="must be one of"):
        llm.generate("hello", SamplingParams(grammar_spec=GrammarSpec("json", '{"type": "nothing"}')))
    assert llm.generate("hello", GREEDY)[0].outputs[0].token_ids, "the next call works"


def test_forced_tokens_taken_at_once_change_nothing(llm: LLM) -> None:
    schema = (
        '{"type": "object", "properties": {"name": {"enum": ["fox", "dog"]}, "age": {"type": "integer", '
        '"maximum": 9, "minimum": 0}}, "required": ["name", "age"], "additionalProperties": false}'
    )
    params = SamplingParams(max_tokens=60, seed=4, grammar_spec=GrammarSpec("json", schema))
    forced = llm.generate("hello", params, n=4)[0].outputs
    stepping = llm.generate("hello", msgspec.structs.replace(params, logprobs=0), n=4)[0].outputs
    assert [output.token_ids for output in forced] == [output.token_ids for output in stepping]
    assert [output.text for output in forced] == [output.text for output in stepping]
    for output in forced:
        assert output.finish_reason == "stop"
        assert json.loads(output.text)["name"] in ("fox", "dog")


def test_logit_bias(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, logit_bias={77: 100.0})
    assert llm.generate("hello", params)[0].outputs[0].token_ids == [77] * 5


def test_allowed_tokens(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, seed=1, allowed_token_ids=(77, 78))
    assert {*llm.generate("hello", params)[0].outputs[0].token_ids} == {77, 78}


def test_bad_words(llm: LLM) -> None:
    """Wherever in the text they would have been."""
    free = llm.generate("the quick", GREEDY)[0].outputs[0]
    words = tuple(dict.fromkeys(free.text.split()))
    assert words
    params = msgspec.structs.replace(GREEDY, bad_words=words)
    kept = llm.generate("the quick", params)[0].outputs[0]
    assert len(kept.token_ids) == len(free.token_ids)
    assert not {*kept.text.split()} & {*words}


def test_embeddings(llm: LLM) -> None:
    one, two = llm.embed(["hello", "the quick brown fox"])
    assert len(one) == len(two) == 64
    assert one != two
    assert llm.embed("the quick brown fox")[0] == pytest.approx(two, abs=1e-5)
    (token,) = llm.tokenizer.encode("h")
    assert llm.embed([token], pooling="mean")[0] == pytest.approx(llm.embed([token])[0], abs=1e-6)
    with pytest.raises(ValueError, match="give 'last', 'mean' or 'cls'"):
        llm.embed("hello", pooling="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        llm.embed(["hello", ""])
    with pytest.raises(ValueError, match="may have 2048"):
        llm.embed([[5] * 2049])
    assert len(llm.embed([[5] * 2048])[0]) == 64, "the prompt may fill the model"


def test_a_vocabulary_that_is_larger_than_the_embedding(text_model: Path, tmp_path: Path) -> None:
    """Else a prompt would read beyond the table."""
    folder = shutil.copytree(text_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(TokenizerFilesError, match=r"token id \d+, the model only 100 ids; they do not belong together"):
        LLM(folder, **OPTIONS)


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="does not exist"):
        LLM(model=tmp_path / "nothing")


def test_the_server_gives_the_same_tokens(llm: LLM, text_model: Path, tmp_path: Path) -> None:
    prompts = ["hello world", "the quick brown fox", "na\u00efve"]
    expected = [output.outputs[0].text for output in llm.generate(prompts, GREEDY)]
    flags = ("--dtype", "float32", "--kv_cache_bytes", "32MiB", "--max_num_seqs", "8")
    with running_server(tmp_path, text_model, *flags, engine="real") as server:
        body = server.post("/v1/completions", prompt=prompts, max_tokens=12, temperature=0, ignore_eos=True).json()
        assert [choice["text"] for choice in body["choices"]] == expected
        for title in ("Serving Arguments", "Start-up", "weights", "warm-up", "Memory plan", "KV blocks"):
            assert title in server.output
        assert "libtorch" in Path(f"/proc/{server.engine_pid}/maps").read_text()
        assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_custom_allreduce_is_for_gpus(text_model: Path) -> None:
    says = "--enable_custom_allreduce is for GPUs, and there is none; leave it out"
    with pytest.raises(ValueError, match=says):
        LLM(str(text_model), load_format="dummy", enable_custom_allreduce=True)
    with pytest.raises(ValueError, match=says):
        LLM(str(text_model), load_format="dummy", disable_custom_all_reduce=False)


def test_it_is_of_one_machine(text_model: Path) -> None:
    with pytest.raises(ValueError, match="LLM is of one machine; leave nnodes out, or start blade_llm_server on each"):
        LLM(str(text_model), load_format="dummy", nnodes=2, tensor_parallel_size=2)
