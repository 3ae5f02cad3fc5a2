"""What copies of requests may take: in number, and in bytes of requests and answers."""

import asyncio

from router_support.engine import MockEngine
from router_support.serving import eventually
from router_support.shadowing import shadowed

from blade_router.proxy.shadow import MAX_BODY, MAX_RUNNING
from blade_router.statistics.answer import MAX_KEPT, Answer


async def test_only_so_many_copies_are_under_way_and_the_others_do_not_wait() -> None:
    async with shadowed(new=MockEngine("same", mode="hang")) as pair:
        for _ in range(MAX_RUNNING + 5):
            await pair.ask()
        assert (pair.shadows.running, pair.found.sent, pair.found.dropped) == (MAX_RUNNING, MAX_RUNNING, {"busy": 5})
        await eventually(lambda: len(pair.new.received) == MAX_RUNNING)
        assert len(pair.old.received) == MAX_RUNNING + 5


async def test_a_large_request_is_not_copied() -> None:
    async with shadowed() as pair:
        await pair.ask(metadata="x" * MAX_BODY)
        await pair.ask()
        found = await pair.settled()
        assert (found.sent, found.dropped) == (1, {"large": 1})


async def test_of_a_long_answer_the_beginning_is_compared() -> None:
    padding = "x" * 1000
    number = 3 * MAX_KEPT // 1000
    old = MockEngine("same", tokens=number, padding=padding)
    async with shadowed(old, MockEngine("same", tokens=number, padding=padding)) as pair:
        assert len(await pair.ask(stream=True, temperature=0)) > 3 * MAX_KEPT
        found = await pair.settled()
        assert (found.copies.requests, found.same, found.different) == (1, 1, 0)
        assert sum(found.copies.lengths) == 1
        pair.new.padding = "y" * 1000
        await pair.ask(stream=True, temperature=0)
        assert (await pair.settled()).different == 1
        pair.new.padding, pair.new.tokens = padding, 5
        await pair.ask(stream=True, temperature=0)
        assert (await pair.settled()).different == 2, "it ended where the other goes on"


async def test_a_huge_answer_is_no_more_than_read() -> None:
    async with shadowed(new=MockEngine("same", tokens=40, padding="z" * (1 << 20))) as pair:
        for _ in range(2):
            answer = await pair.ask(stream=True)
            assert b"zzz" not in answer
        found = await pair.settled()
        assert (found.copies.errors, found.originals.errors) == (2, 0), "beside a short one it is an error"
        await eventually(lambda: pair.new.active == 0)


async def test_a_large_unary_answer_is_not_compared() -> None:
    async with shadowed(new=MockEngine("same", padding="z" * (2 * MAX_KEPT))) as pair:
        await pair.ask()
        found = await pair.settled()
        assert (found.copies.requests, found.dropped) == (0, {"large": 1})


async def test_a_slow_copy_is_compared_when_it_has_ended() -> None:
    gate = asyncio.Semaphore(0)
    async with shadowed(new=MockEngine("same", gate=gate)) as pair:
        await pair.ask(stream=True, temperature=0)
        assert pair.found.copies.requests == 0
        for _ in range(3):
            gate.release()
        found = await pair.settled()
        assert (found.copies.requests, found.same) == (1, 1)


def test_an_answer_keeps_so_much_and_no_more() -> None:
    answer = Answer()
    for _ in range(10):
        answer.keep(b"x" * MAX_KEPT)
    assert (len(answer.kept), answer.size, answer.whole) == (MAX_KEPT, 10 * MAX_KEPT, False)


def test_only_the_first_outcome_of_an_answer_counts() -> None:
    closed = []
    answer = Answer(lambda: closed.append(1))
    answer.keep(b"begun")
    answer.fail()
    answer.succeed(1.0, 2.0, True, 3, b"")
    answer.keep(b"of another attempt")
    assert (answer.failed, answer.kept, answer.tokens) == (True, b"", 0)
    answer.close()
    answer.close()
    assert closed == [1]
