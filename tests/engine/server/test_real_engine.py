"""The API's fields on the real engine with a small random model in fp32: what the fake engine makes up comes true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server, wait_until

TEXT = "/v1/completions"
PROMPT = "hello world, the quick brown fox"
HELLO = [{"role": "user", "content": "x"}]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    flags = ("--dtype", "float32", "--kv_cache_bytes", "32MiB", "--max_num_seqs", "8")
    with running_server(tmp_path_factory.mktemp("real"), text_model, *flags, engine="real") as server:
        yield server


def _choices(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    response = server.post(TEXT, **{"prompt": PROMPT, **GREEDY, **fields})
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["choices"]
    return found


def test_an_outputs_logprobs_are_those_of_the_same_text_as_a_prompt(real: ServerProcess) -> None:
    """A token has the same log-probability when it is sampled and when it is read."""
    (sampled,) = _choices(real, logprobs=2, return_tokens_as_token_ids=True)
    ids = real.post("/tokenize", prompt=PROMPT).json()["tokens"]
    output_ids = [int(token.partition(":")[2]) for token in sampled["logprobs"]["tokens"]]
    (read,) = _choices(
        real, prompt=ids + output_ids, echo=True, max_tokens=0, logprobs=2, return_tokens_as_token_ids=True
    )
    logprobs = read["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["tokens"][-6:] == sampled["logprobs"]["tokens"]
    assert logprobs["token_logprobs"][-6:] == pytest.approx(sampled["logprobs"]["token_logprobs"], abs=1e-4)
    for prompt_top, sampled_top in zip(logprobs["top_logprobs"][-6:], sampled["logprobs"]["top_logprobs"], strict=True):
        assert prompt_top == pytest.approx(sampled_top, abs=1e-4)
    (whole,) = _choices(real, prompt=ids, prompt_logprobs=3)
    assert len(whole["prompt_logprobs"]) == len(ids)
    assert all(str(token) in entry for token, entry in zip(ids[1:], whole["prompt_logprobs"][1:], strict=True))


def test_samples_repeat_and_differ(real: ServerProcess) -> None:
    fields = {"n": 4, "seed": 11, "temperature": 1.0, "logprobs": 0}
    first, again = _choices(real, **fields), _choices(real, **fields)
    assert [choice["text"] for choice in first] == [choice["text"] for choice in again]
    assert len({choice["text"] for choice in first}) == 4
    means = [sum(choice["logprobs"]["token_logprobs"]) / 6 for choice in first]
    (best,) = _choices(real, **{**fields, "n": 1, "best_of": 4})
    assert best["text"] == first[means.index(max(means))]["text"]


def test_beams_are_at_least_as_likely_as_the_greedy_response(real: ServerProcess) -> None:
    def total(choice: dict[str, Any]) -> float:
        return float(sum(choice["logprobs"]["token_logprobs"]))

    (greedy,) = _choices(real, logprobs=0)
    beams = _choices(real, logprobs=0, beam_width=4, n=4)
    totals = [total(beam) for beam in beams]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] >= total(greedy) - 1e-4
    assert len({beam["text"] for beam in beams}) == 4
    (only,) = _choices(real, beam_width=4)
    assert only["text"] == beams[0]["text"]
    streamed = real.post(TEXT, prompt=PROMPT, **GREEDY, beam_width=4, stream=True)
    assert streamed.status_code == 200
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_what_the_engine_refuses_is_named_before_the_stream(real: ServerProcess) -> None:
    """It has 8 slots."""
    for path, fields in ((TEXT, {"prompt": "x"}), ("/v1/chat/completions", {"messages": HELLO})):
        response = real.post(path, **fields, beam_width=9, stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "beam_width"


def test_embeddings_of_equal_texts_are_equal(real: ServerProcess) -> None:
    texts = [PROMPT, "na\u00efve", PROMPT]
    for pooling in ("last", "mean"):
        data = real.post("/v1/embeddings", input=texts, pooling=pooling).json()["data"]
        one, other, same = (entry["embedding"] for entry in data)
        assert len(one) == 64
        assert math.hypot(*one) == pytest.approx(1.0, abs=1e-5)
        assert one == pytest.approx(same, abs=1e-5)
        assert one != pytest.approx(other, abs=1e-2)
    short = real.post("/v1/embeddings", input=PROMPT, dimensions=65)
    assert short.status_code == 400
    assert short.json()["error"]["param"] == "dimensions"


def test_bias_and_stop(real: ServerProcess) -> None:
    (free,) = _choices(real, logprobs=0, return_tokens_as_token_ids=True)
    first = free["logprobs"]["tokens"][0].partition(":")[2]
    (biased,) = _choices(real, logit_bias={first: -100}, logprobs=0, return_tokens_as_token_ids=True)
    assert f"token_id:{first}" not in biased["logprobs"]["tokens"]
    forced = _choices(real, logit_bias={"70": 100}, max_tokens=3, logprobs=0, return_tokens_as_token_ids=True)[0]
    assert forced["logprobs"]["tokens"] == ["token_id:70"] * 3


def test_bad_words_and_allowed_tokens(real: ServerProcess) -> None:
    (free,) = _choices(real)
    words = [*dict.fromkeys(free["text"].split())]
    (kept,) = _choices(real, bad_words=words)
    assert not {*words} & {*kept["text"].split()}
    assert kept["text"] != free["text"]
    for choice in _choices(real, n=3, temperature=1.0, allowed_token_ids=[70, 71], return_token_ids=True):
        assert {*choice["token_ids"]} <= {70, 71}
        assert choice["finish_reason"] == "length"
    (two,) = (real.post("/v1/chat/completions", messages=HELLO, max_tokens=4, allowed_token_ids=[70], logprobs=True),)
    assert [entry["token"] for entry in two.json()["choices"][0]["logprobs"]["content"]] == [
        real.post("/detokenize", tokens=[70]).json()["prompt"]
    ] * 4
    responded = real.post("/v1/responses", input="hello", max_output_tokens=8, allowed_token_ids=[70, 71])
    assert responded.json()["usage"]["output_tokens"] == 8


def test_a_request_that_may_say_nothing_is_told_so(real: ServerProcess) -> None:
    word = real.post("/detokenize", tokens=[70]).json()["prompt"]
    for path, fields in ((TEXT, {"prompt": "x"}), ("/v1/chat/completions", {"messages": HELLO})):
        response = real.post(path, **fields, bad_words=[word], allowed_token_ids=[70], stream=path == TEXT)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "allowed_token_ids"
        assert "leaves no token to go on with" in response.json()["error"]["message"]


def test_a_standby_forgets_what_it_cached_and_comes_back_at_once(real: ServerProcess) -> None:
    before = _choices(real)
    drain = f"{real.internal_url}/internal/drain"
    refused = httpx.post(drain, json={"draining": False, "standby": True})
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "standby goes together with draining: true; leave it out to take the replica back in",
    )
    assert httpx.post(drain, json={"standby": True}).json()["draining"] is True
    wait_until(lambda: real.state()["standby"])
    assert httpx.get(f"{real.internal_url}/internal/kv").json()["digests"] == ""
    assert httpx.get(f"{real.url}/health").status_code == 503
    assert httpx.post(drain, json={"draining": False}).json()["draining"] is False
    assert _choices(real) == before
    wait_until(lambda: not real.state()["standby"])


def test_nothing_is_left(real: ServerProcess) -> None:
    state = real.wait_idle()
    assert state["kv_blocks_free"] == state["kv_blocks_total"]
