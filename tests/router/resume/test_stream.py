"""Taking token ids out of a stream: whatever the network cuts it into, what is sent and what is known go together."""

import itertools
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_router.resume import MAX_BUFFERED, ResumableStream, event_stream

GROUPS = [
    (b"data: role\n\ndata: one\n\n", b"5,6"),
    (b"event: x\ndata: two\n\n", b"7"),
    (b"data: end\n\ndata: [DONE]\n\n", b""),
]
TEXT = b"".join(b"%b: %b\n\n" % group for group in GROUPS)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_any_cut_gives_whole_groups_and_their_ids(cuts: list[int]) -> None:
    stream = ResumableStream()
    sent = b""
    places = [0, *sorted(cuts), len(TEXT)]
    for begin, end in itertools.pairwise(places):
        sent += stream.feed(TEXT[begin:end])
        known = 0
        for number in range(1, len(GROUPS) + 1):
            if sent == b"".join(data for data, _ in GROUPS[:number]):
                known = number
                assert stream.token_ids == [[5, 6], [7], []][:known]
        assert known or not sent
    assert sent == b"".join(data for data, _ in GROUPS)
    assert stream.end() == b""
    assert stream.over


def test_lost_is_taken_out_wherever_it_is_cut() -> None:
    text = b"data: one\n\n: 5\n\n: lost\n\n"
    for cut in range(len(text)):
        stream = ResumableStream()
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) == b"data: one\n\n"
        assert stream.lost
        stream.resumed()
        assert not stream.lost


def test_an_unfinished_event_is_dropped_on_resume() -> None:
    stream = ResumableStream()
    assert stream.feed(b"data: one\n\n: 5\n\ndata: two\n\ndata: th") == b"data: one\n\n"
    stream.resumed()
    assert stream.feed(b"data: two\n\n: 6\n\n") == b"data: two\n\n"
    assert stream.token_ids == [[5], [6]]


def test_a_stream_without_the_ids_it_announced_passes_and_is_not_resumed() -> None:
    stream = ResumableStream()
    assert stream.feed(b"data: one\n\n") == b""
    rest = b"data: " + b"x" * MAX_BUFFERED
    assert stream.feed(rest) == b"data: one\n\n" + rest
    assert stream.feed(b"\n\ndata: [DONE]\n\n") == b"\n\ndata: [DONE]\n\n"
    assert stream.over
    with pytest.raises(msgspec.MsgspecError):
        _ = stream.token_ids


def test_ids_that_are_none_are_noticed() -> None:
    stream = ResumableStream()
    stream.feed(b"data: one\n\n: 5,x\n\n")
    with pytest.raises(msgspec.MsgspecError):
        _ = stream.token_ids


def test_only_an_engine_that_announces_ids_is_read_this_way() -> None:
    assert isinstance(event_stream([(b"x-blade-prompt-digest", b"0")]), ResumableStream)
    other = event_stream([(b"content-type", b"text/event-stream")])
    assert other.feed(b"data: 1\n\n: 5\n\n") == b"data: 1\n\n: 5\n\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"data: one\n\n: 5\n\n", 1),
        (b"data: one\n\n: 5,6,7\n\ndata: two\n\n: 8\n\n", 2),
        (b"event: x\ndata: one\n\n: 5\n\n", 1),
        (b"data: role\n\ndata: one\n\n: 5\n\n", 2),
        (b"data: one\n\n: \n\n", 1),
        (b"data: one\n\n: " + b"12345," * 40 + b"1\n\n", 1),
        (b"data: one\n\n: 5\n\n: lost\n\n", 1),
    ],
)
def test_events_that_come_with_ids_are_counted(text: bytes, count: int) -> None:
    stream = ResumableStream()
    assert stream.feed(text).count(b"\n\n") == stream.count == count
    assert stream.lost == text.endswith(b": lost\n\n")
    ids = re.findall(rb"\n\n: ([\d,]*)(?=\n\n)", text)
    assert stream.token_ids == [[int(each) for each in group.split(b",") if each] for group in ids]


@pytest.mark.parametrize(
    ("text", "count"),
    [(b"data: 1\n\n", 1), (b"data: 1\n\ndata: 2\n\n", 2), (b"event: x\ndata: 1\n\n", 1), (b"data", 0)],
)
def test_events_without_ids_are_counted(text: bytes, count: int) -> None:
    stream = event_stream([])
    stream.feed(text)
    assert stream.count == count
