"""Token usage as responses report it, in the shapes of all APIs, and what is none."""

import pytest

from blade_router.request.read_usage import MAX_TOKENS, usage_of, usage_of_stream
from blade_router.request.usage import Usage


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}', Usage(7, 3)),
        (
            b'{"usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}}',
            Usage(7, 3, 4),
        ),
        (b'{"response": {"usage": {"input_tokens": 7, "output_tokens": 3}}}', Usage(7, 3)),
        (
            b'{"usage": {"input_tokens": 7, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2,'
            b' "output_tokens": 3}}',
            Usage(13, 3, 4),
        ),
        (b'{"message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}', Usage(7, 1)),
        (b'{"usage": {"prompt_tokens": 7}}', Usage(7, 0)),
        (b'{"usage": {"prompt_tokens": 7, "completion_tokens": -3}}', Usage(7, 0)),
        (b'{"usage": {"prompt_tokens": 7, "completion_tokens": 9999999999999999}}', Usage(7, MAX_TOKENS)),
        (b'{"usage": {}}', None),
        (b'{"usage": {"prompt_tokens": 0, "completion_tokens": 0}}', None),
        (b'{"usage": null}', None),
        (b'{"usage": {"prompt_tokens": "7"}}', None),
        (b"{}", None),
        (b"no JSON", None),
    ],
)
def test_usage_of_a_response(body: bytes, usage: Usage | None) -> None:
    assert usage_of(body) == usage


def test_the_last_usage_of_a_stream_counts() -> None:
    event = b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": %d}}\n\n'
    assert usage_of_stream(event % 1 + event % 2 + b"data: [DONE]\n\n") == Usage(7, 2)
    assert usage_of_stream(event % 1 + b'data: {"usage": null}\n\ndata: [DONE]\n\n') == Usage(7, 1)
    assert usage_of_stream(b"data: {}\n\ndata: [DONE]\n\n") is None
