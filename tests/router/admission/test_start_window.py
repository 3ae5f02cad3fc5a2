"""The window of requests whose first token is to come grows while they come in time, and shrinks when they do not."""

from blade_router.admission.capacity.start_window import (
    FORGET_SECONDS,
    INITIAL,
    LEAST,
    LONGEST_SECONDS,
    TARGET_SECONDS,
    Start,
    StartWindow,
)


class Bench:
    def __init__(self, engines: int = 1, *, enabled: bool = True) -> None:
        self.now = 1000.0
        self.window = StartWindow(lambda: self.now)
        self.window.configure(engines, enabled=enabled)

    def fill(self, *, streams: bool = True) -> list[Start]:
        """As many as the window admits."""
        started = []
        while not self.window.is_full():
            start = self.window.begin(streams)
            assert start is not None
            started.append(start)
        return started

    def round(self, seconds: float) -> int:
        """A full window, of which each has its first token after so long; returns its size."""
        started = self.fill()
        self.now += seconds
        for start in started:
            self.window.first_token(start)
        return len(started)


def test_it_doubles_while_first_tokens_come_in_time() -> None:
    bench = Bench()
    assert [bench.round(TARGET_SECONDS / 2) for _ in range(4)] == [INITIAL * 2**each for each in range(4)]


def test_late_first_tokens_shrink_it_once_for_all_that_were_sent_together() -> None:
    bench = Bench()
    while bench.window.size < 64:
        bench.round(0.1)
    assert bench.round(2 * TARGET_SECONDS) == 64
    assert bench.window.size == 44
    for _ in range(20):
        bench.round(2 * TARGET_SECONDS)
    assert bench.window.size == LEAST


def test_engines_have_windows_that_add_up() -> None:
    bench = Bench(engines=3)
    assert bench.window.size == 3 * INITIAL
    bench.window.configure(6, enabled=True)
    assert bench.window.size == 6 * INITIAL
    bench.window.configure(0, enabled=True)
    assert bench.window.size >= LEAST


def test_a_request_that_ends_without_a_token_makes_room() -> None:
    bench = Bench()
    started = bench.fill()
    bench.window.end(started[0])
    bench.window.end(started[0])
    assert len(bench.fill()) == 1


def test_responses_that_do_not_stream_count_as_long_as_streams_take() -> None:
    bench = Bench()
    for _ in range(4):
        bench.round(0.4)
    bench.window._start_seconds = 0.4
    size = bench.window.size
    assert len(bench.fill(streams=False)) == size
    bench.now += 0.3
    assert bench.window.is_full()
    bench.now += 0.15
    assert len(bench.fill(streams=False)) == size
    bench = Bench()
    for _ in range(100):  # nothing is known of streams: nothing is held back
        assert not bench.window.is_full()
        bench.window.begin(False)
        bench.now += 0.001


def test_what_was_learned_is_forgotten_by_and_by_when_nobody_waits() -> None:
    bench = Bench()
    while bench.window.size < 64:
        bench.round(0.1)
    for size in (32, 16, 8, INITIAL, INITIAL):
        bench.now += FORGET_SECONDS + 1
        start = bench.window.begin(True)
        assert start is not None
        bench.window.end(start)
        assert bench.window.size == size


def test_switched_off_it_holds_nothing_back() -> None:
    bench = Bench(enabled=False)
    assert [bench.window.begin(True) for _ in range(1000)] == [None] * 1000
    assert not bench.window.is_full()


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    bench = Bench()
    for _ in range(100):
        start = bench.window.begin(streams=False)
        assert start is not None
        bench.window.end(start)
    assert not bench.window._silent
    assert bench.window.starting == 0


def test_an_engine_that_hangs_does_not_fill_it_for_ever() -> None:
    bench = Bench(engines=2)
    bench.fill()
    bench.now += LONGEST_SECONDS
    assert len(bench.fill()) == 2 * INITIAL
