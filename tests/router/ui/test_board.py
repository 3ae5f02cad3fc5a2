"""The board: what several processes know, put together second by second and request by request."""

from collections.abc import Sequence

from blade_router.ui.board import MAX_ROWS, NOT_RECORDED, Board
from blade_router.ui.parts import Known, Part
from blade_router.ui.sampler import KEPT, KeyCounts, Sample
from blade_router.ui.state import RequestRow


def row(id: str, started: float = 1.0, status: int | None = 200) -> RequestRow:
    end = None if status is None else 2.0
    none = (None,) * 3
    return RequestRow(id, None, started, "k", "m", "/", True, status, None, "a", None, *none, None, 0.1, 0.2, end, ())


def sample(time: int, rate: float = 1.0, p99: float = 0.5, **keys: KeyCounts) -> Sample:
    return Sample(time, rate, 0.0, 2, 1, (0.1, 0.2, p99), None, 10, 5, keys)


def part(
    process: str = "p",
    ended: Sequence[RequestRow] = (),
    in_flight: Sequence[RequestRow] = (),
    samples: Sequence[Sample] = (),
    number: int = 0,
    is_all: bool = True,
    endpoints: dict[str, int] | None = None,
) -> Part:
    return Part(process, tuple(samples), tuple(ended), tuple(in_flight), is_all, number, endpoints or {}, 0.0)


def test_the_workers_of_a_second_are_added() -> None:
    board = Board()
    board.update(
        [
            ("0", part("p", samples=[sample(7, 1.0, 0.5, a=(1.0, 0.0, 10.0))], endpoints={"e": 2})),
            ("1", part("q", samples=[sample(7, 2.0, 0.9, a=(1.0, 1.0, 5.0), b=(2.0, 0.0, 1.0))], endpoints={"e": 1})),
        ]
    )
    (found,) = board.new_samples
    assert (found.rate, found.in_flight, found.queue, found.prompt_tokens) == (3.0, 4, 2, 20)
    assert found.ttft == (0.1, 0.2, 0.9)  # the worst
    assert found.keys == {"a": (2.0, 1.0, 15.0), "b": (2.0, 0.0, 1.0)}
    assert board.in_flight == {"e": 3}
    assert board.tokens == {"a": 15.0, "b": 1.0}


def test_what_comes_late_is_no_new_point() -> None:
    board = Board()
    board.update([("0", part(samples=[sample(7), sample(8)]))])
    board.update([("0", part(samples=[sample(9)])), ("1", part("q", samples=[sample(8)]))])
    assert [each.time for each in board.new_samples] == [9]
    assert board.samples[8].rate == 2.0


def test_a_process_is_asked_for_what_is_new() -> None:
    board = Board()
    assert board.known("0") == Known()
    board.update([("0", part(samples=[sample(7)], number=3))])
    assert board.known("0") == Known("p", 3, 7)
    board.update([("0", part(number=4))])
    assert board.known("0") == Known("p", 4, 7)


def test_a_request_is_one_row_from_begin_to_end() -> None:
    board = Board()
    board.update([("0", part(in_flight=[row("x", status=None)]))])
    board.update([("0", part(in_flight=[row("x", status=None)]))])
    assert board.new_rows == []
    board.update([("0", part(ended=[row("x")]))])
    assert [each.status for each in board.new_rows] == [200]
    assert len(board.rows) == 1


def test_requests_of_the_same_id_are_told_apart() -> None:
    board = Board()
    board.update([("0", part(ended=[row("x", 1.0), row("x", 2.0, 500), row("x", 1.0)]))])
    assert {id: each.status for id, each in board.rows.items()} == {"x": 200, "x#2.0000": 500}


def test_one_of_which_the_end_was_not_told_is_not_shown_for_ever() -> None:
    board = Board()
    board.update([("0", part(in_flight=[row("x", 1.0, None), row("y", 5.0, None)]))])
    board.update([("0", part(in_flight=[row("z", 4.0, None)], is_all=False))])
    assert board.rows["x"].status is None  # there may be more in flight than are told
    assert (board.rows["y"].status, board.rows["y"].error) == (0, NOT_RECORDED)
    board.update([("0", part(in_flight=[row("z", 4.0, None)]))])
    assert board.rows["x"].error == NOT_RECORDED


def test_the_requests_of_a_process_that_died_have_ended() -> None:
    board = Board()
    board.update([("0", part("p", in_flight=[row("x", status=None)]))])
    board.update([("0", part("another"))])
    assert board.rows["x"].error == NOT_RECORDED


def test_it_is_bounded() -> None:
    board = Board()
    for number in range(3):
        rows = [row(f"{number}-{each}") for each in range(1000)]
        board.update([("0", part(ended=rows, samples=[sample(number * 200 + each) for each in range(200)]))])
    assert (len(board.rows), len(board.samples)) == (MAX_ROWS, KEPT)
    assert list(board.samples)[-1] == 599
