"""Which adapter's content a resumable stream demands: any where it begins, the same where it is gone on with."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.generation.result import Choice
from blade_llm.api.generation.resumable import RESUMED, Resumable, resumable
from blade_llm.api.generation.search import Search
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.spec.vision.images import ImageSpan
from blade_protocol import headers
from blade_protocol.resume import ResumeRequest

CONTENT = "ab" * 32


def stream(adapter: str, digest: str | None = None, picture: bytes = b"") -> Resumable:
    """The stream of a request for ``adapter``; ``digest``: it began elsewhere with that one. ``picture``: the
    digest of its image, if it has one."""
    scope = {
        "type": "http",
        "headers": [(headers.STREAM_IDS.encode(), b"1")],
        "state": {"request_id": "r"},
    }
    if digest is not None:
        scope[RESUMED] = ResumeRequest(
            path="", request=b"{}", request_id="r", created=1, seed=7, prompt_digest=digest, token_ids=[[3]]
        )
    images = [ImageSpan(1, 1, picture, (1, 2, 2))] if picture else []
    prompt = Prompt([1, 2], SamplingParams(seed=7, max_tokens=8), images=images)
    found = resumable(
        Request(scope),
        GenerationFields(stream=True),
        [prompt],
        Search(),
        model=adapter or "base",
        adapter=adapter,
        vocab_size=9,
        stream=True,
    )
    assert found is not None
    return found


def test_a_stream_begins_with_any_content_and_goes_on_with_the_same() -> None:
    begun = stream("a")
    assert begun.adapter_digest == ""
    digest = begun.headers(CONTENT)[headers.PROMPT_DIGEST]
    assert digest != begun.headers("cd" * 32)[headers.PROMPT_DIGEST]
    resumed = stream("a", digest)
    assert (resumed.adapter_digest, resumed.key) == (CONTENT, begun.key)
    assert resumed.headers(CONTENT)[headers.PROMPT_DIGEST] == digest


def test_the_base_model_has_no_content_of_an_adapter() -> None:
    digest = stream("").headers("")[headers.PROMPT_DIGEST]
    assert len(digest) == 64
    assert stream("", digest).adapter_digest == ""


@pytest.mark.parametrize(("adapter", "content"), [("a", ""), ("", CONTENT)])
def test_an_adapter_here_and_none_there_differ(adapter: str, content: str) -> None:
    digest = stream(adapter).headers(content)[headers.PROMPT_DIGEST]
    with pytest.raises(ApiError) as refused:
        stream(adapter, digest)
    assert (refused.value.status, refused.value.detail.code) == (409, "prompt_differs")


def test_another_image_at_the_same_url_is_another_prompt() -> None:
    digest = stream("", picture=b"a" * 32).headers("")[headers.PROMPT_DIGEST]
    assert stream("", digest, picture=b"a" * 32).sent_token_ids == [[3]]
    for other in (b"b" * 32, b""):
        with pytest.raises(ApiError) as refused:
            stream("", digest, picture=other)
        assert (refused.value.status, refused.value.detail.code) == (409, "prompt_differs")


def test_the_time_between_replayed_tokens_is_not_measured() -> None:
    choice = Choice.__new__(Choice)
    choice.num_tokens, choice.first_token_at, choice.gaps = 3, 1.0, [2, 0]
    choice.mark_replayed()
    assert (choice.num_replayed, choice.gaps) == (3, [0, 0])
