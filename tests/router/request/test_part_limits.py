"""How many pictures and videos a request may have, and how large a part of it may be."""

from typing import Any

import pytest
from router_support.media import (
    EMBEDDED,
    MIB,
    SHORT,
    anthropic,
    anthropic_linked,
    linked,
    openai,
    read,
    read_body,
)

from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.request.part_limits import LEAST_PART_LIMIT, PartLimits
from blade_router.request.request import read_request


@pytest.mark.parametrize("form", [*EMBEDDED, linked, anthropic_linked])
async def test_too_many_pictures_are_refused(form: Any) -> None:
    limits = PartLimits(max_images=64)
    limits.check(await read(*[form(str(number)) for number in range(64)], SHORT))
    for count in (65, 1000):
        with pytest.raises(Refused, match=f"{count} images and videos, and the limit is 64") as refused:
            limits.check(await read(*[form(str(number)) for number in range(count)], SHORT))
        assert (refused.value.status, refused.value.code) == (400, "too_many_images")
    PartLimits().check(await read(*[form(str(number)) for number in range(1000)]))


async def test_pictures_of_all_messages_count_together() -> None:
    messages = [{"role": "user", "content": [openai("A")]} for _ in range(10)]
    body = {"model": "m", "messages": [*messages, {"role": "assistant", "content": None}]}
    PartLimits(max_images=10).check(await read_body(body))
    with pytest.raises(Refused):
        PartLimits(max_images=9).check(await read_body(body))
    with pytest.raises(Refused):
        PartLimits(max_images=9).check(await read_body({**body, "metadata": "x" * 2 * MIB}))


async def test_the_shortest_pictures_are_counted() -> None:
    """The number of bytes below which none are counted is one that more pictures never fit into."""
    for part in (
        b'{"type":"image_url","image_url":"data:,"}',
        b'{"type":"input_image","image_url":"/"}',
        b'{"type":"image","source":{"type":"url","url":""}}',
    ):
        body = b'{"messages":[{"content":[%b]}]}' % b",".join([part] * 65)
        found = await read_request(RawRequest(b"POST", b"/v1/messages", [], True, True, body=body))
        with pytest.raises(Refused):
            PartLimits(max_images=64).check(found)


@pytest.mark.parametrize("form", EMBEDDED)
async def test_a_part_that_is_too_large_is_refused(form: Any) -> None:
    limits = PartLimits(max_part_bytes=2 * MIB)
    limits.check(await read(*[form("A" * (2 * MIB - 100))] * 3))
    with pytest.raises(Refused, match=r"a part of the request body has \d+ bytes, and the limit is 2097152") as refused:
        limits.check(await read(form("A" * 1000), form("A" * (2 * MIB + 1))))
    assert (refused.value.status, refused.value.code) == (413, "part_too_large")


async def test_a_text_counts_as_a_part_whatever_it_claims_to_be() -> None:
    limits = PartLimits(max_part_bytes=LEAST_PART_LIMIT)
    for part in (openai("A A" * MIB), {"type": "text", "text": "x" * 2 * MIB}, anthropic("\\" * 2 * MIB)):
        with pytest.raises(Refused):
            limits.check(await read(part))
