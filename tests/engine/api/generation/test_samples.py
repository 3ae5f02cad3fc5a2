"""Several outputs for one prompt: samples, the best of them, beams. On a real server process with a fake engine."""

from __future__ import annotations

from typing import Any

import httpx
from engine_support.server_process import ServerProcess

TEXT = "/v1/completions"


def _post(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = server.post(TEXT, **{"max_tokens": 6, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _mean(choice: dict[str, Any]) -> float:
    values = choice["logprobs"]["token_logprobs"]
    return float(sum(values) / len(values))


def test_samples_are_numbered_prompt_by_prompt(server: ServerProcess) -> None:
    both = _post(server, prompt=["one", "two"], n=3, seed=4)
    assert [choice["index"] for choice in both["choices"]] == list(range(6))
    second = _post(server, prompt="two", n=3, seed=4)
    assert [choice["text"] for choice in both["choices"][3:]] == [choice["text"] for choice in second["choices"]]
    assert len({choice["text"] for choice in second["choices"]}) == 3


def test_best_of_returns_the_likeliest(server: ServerProcess) -> None:
    every = _post(server, prompt="hello", n=5, seed=3, logprobs=0)["choices"]
    best = _post(server, prompt="hello", n=2, best_of=5, seed=3, logprobs=0)
    wanted = sorted(every, key=_mean, reverse=True)[:2]
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in wanted]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 30, "all that were sampled count"
    silent = _post(server, prompt="hello", n=2, best_of=5, seed=3)
    assert [choice["text"] for choice in silent["choices"]] == [choice["text"] for choice in best["choices"]]
    assert silent["choices"][0]["logprobs"] is None


def test_beams(server: ServerProcess) -> None:
    """The fake engine's best beam is the greedy output."""
    greedy = _post(server, prompt="hello", temperature=0)["choices"][0]["text"]
    cases: list[dict[str, Any]] = [
        {"use_beam_search": True, "n": 2},
        {"beam_width": 4, "n": 2},
        {"best_of": 4, "use_beam_search": "true"},
    ]
    for fields in cases:
        found = _post(server, prompt="hello", length_penalty=0.5, early_stopping=True, **fields)["choices"]
        assert found[0]["text"] == greedy
        assert len(found) == fields.get("n", 1)
    one = _post(server, prompt="hello", use_beam_search=True, temperature=1.0)
    assert one["choices"][0]["text"] == greedy, "a single beam is greedy, whatever the model's defaults"


def test_a_client_that_leaves_ends_all_samples(server: ServerProcess) -> None:
    total = server.wait_idle()["kv_blocks_total"]
    body = {"prompt": "hello", "n": 8, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + TEXT, json=body) as response:
        next(response.iter_lines())
    assert server.wait_idle()["kv_blocks_free"] == total
