"""What a request may want of its prompt: the log-probabilities of its tokens, or a pooled state and nothing else."""

from __future__ import annotations

import pytest
from engine_support.fake_core import make_core, run
from engine_support.fake_runner import FakeRunner, context_of, fake_embedding, fake_logprobs

from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 91 for i in range(length)]


def plain(name: str, prompt: list[int], max_tokens: int = 5, priority: int = 0) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, ignore_eos=True)
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, priority=priority)


def with_prompt_logprobs(name: str, prompt: list[int], max_tokens: int = 3) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, ignore_eos=True, prompt_logprobs=2)
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def pooled(name: str, prompt: list[int], pooling: str = "last") -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(),
        pooling=pooling,  # type: ignore[arg-type]
    )


def expected_logprobs(prompt: list[int]) -> list[TokenLogprobs | None]:
    digests = context_of(prompt)
    pairs = zip(digests, prompt[1:], strict=False)
    return [None, *(fake_logprobs(digest, token, 2, 97) for digest, token in pairs)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 100])
@pytest.mark.parametrize("budget", [7, 128])
def test_log_probabilities_of_a_prompt(late: bool, length: int, budget: int) -> None:
    core = make_core(FakeRunner(late=late), max_batch_tokens=budget)
    prompt = prompt_of(length)
    core.add(plain("before", prompt))  # leaves the prompt in the cache, which must not be read
    run(core)
    core.add(with_prompt_logprobs("a", prompt))
    outputs = run(core)["a"]
    assert outputs[0].prompt_logprobs == expected_logprobs(prompt)
    assert outputs[0].cached_tokens == 0
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    core.add(plain("after", prompt))
    assert run(core)["after"][0].cached_tokens == (length - 1) // 16 * 16


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_preempted_prompt_is_reported_once(late: bool, prefix_cache: bool) -> None:
    """Decodes of others outgrow the cache while the prompt is read in small pieces."""
    runner = FakeRunner(num_blocks=12, max_num_seqs=4, max_model_len=200, late=late)
    core = make_core(runner, max_batch_tokens=4, enable_prompt_cache=prefix_cache)
    core.add(plain("running", prompt_of(20, 1), 120))
    for _ in range(30):
        core.step()
    core.add(with_prompt_logprobs("a", prompt_of(110), 10))
    outputs = run(core)
    assert core.scheduler.stats().preemptions_total > 0
    assert outputs["a"][0].prompt_logprobs == expected_logprobs(prompt_of(110))
    assert sum(output.prompt_logprobs is not None for output in outputs["a"]) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_prompt_that_is_known_is_not_scored_again(late: bool) -> None:
    """Preempted after its first output."""
    runner = FakeRunner(num_blocks=12, max_num_seqs=4, max_model_len=200, late=late)
    core = make_core(runner)
    core.add(plain("running", prompt_of(20, 1), 120))
    core.add(with_prompt_logprobs("a", prompt_of(50), 100))
    outputs = run(core)
    assert core.scheduler.stats().preemptions_total > 0
    assert outputs["a"][0].prompt_logprobs == expected_logprobs(prompt_of(50))
    entries = [new for plan in runner.plans for new in plan.new_requests if new.request_id == "a"]
    assert [new.sampling.prompt_logprobs for new in entries] == [2, *[None] * (len(entries) - 1)]
    assert len(entries) > 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("budget", [7, 128])
def test_pooled_states(late: bool, pooling: str, budget: int) -> None:
    runner = FakeRunner(late=late, max_model_len=128, max_num_seqs=4)
    core = make_core(runner, max_batch_tokens=budget)
    prompts = {str(length): prompt_of(length) for length in (1, 2, 16, 31, 100, 128)}
    for name, prompt in prompts.items():
        core.add(pooled(name, prompt, pooling))
    core.add(plain("answer", prompt_of(30, 2), 20))
    outputs = run(core)
    for name, prompt in prompts.items():
        (output,) = outputs[name]
        assert output.embedding == fake_embedding(context_of(prompt), pooling)
        assert (output.finish_reason, output.token_ids) == ("stop", [])
        assert output.cached_tokens is not None
        assert pooling == "last" or output.cached_tokens == 0
    assert len(outputs["answer"]) == 20
    assert core.scheduler.stats().generation_tokens_total == 20


@pytest.mark.parametrize("late", [False, True])
def test_a_preempted_mean_starts_again(late: bool) -> None:
    runner = FakeRunner(num_blocks=12, max_num_seqs=4, max_model_len=200, late=late)
    core = make_core(runner, max_batch_tokens=4)
    core.add(plain("running", prompt_of(20, 1), 120))
    for _ in range(30):
        core.step()
    core.add(pooled("a", prompt_of(110), "mean"))
    outputs = run(core)
    assert core.scheduler.stats().preemptions_total > 0
    assert outputs["a"][0].embedding == fake_embedding(context_of(prompt_of(110)), "mean")


def test_a_prompt_that_is_only_read_may_fill_the_model_but_not_more() -> None:
    core = make_core(FakeRunner(num_blocks=4, max_model_len=80))
    with pytest.raises(ValueError, match="may have 80"):
        core.add(pooled("a", prompt_of(81)))
    with pytest.raises(ValueError, match="80 prompt tokens do not fit into the KV cache, which holds 64"):
        core.add(pooled("a", prompt_of(80)))
    core.add(pooled("a", prompt_of(64)))
    assert len(run(core)["a"]) == 1


def test_aborts_at_any_moment() -> None:
    for steps in range(8):
        core = make_core(FakeRunner(late=True), max_batch_tokens=8)
        for name, pooling in (("a", "mean"), ("b", "last"), ("c", "last")):
            core.add(pooled(name, prompt_of(20), pooling))
        for _ in range(steps):
            core.step()
        core.abort(["a", "b"])
        assert set(run(core)) <= {"c"}
