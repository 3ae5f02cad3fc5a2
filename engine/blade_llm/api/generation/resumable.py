"""Streams that another replica can resume (failover): what has to be equal there, and the token ids between events.

:mod:`blade_protocol.resume` has the format. Nothing here runs for a stream without token ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.requests import MAX_SEED, GenerationFields
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.generation.search import Search
from blade_llm.api.generation.sse import Events, EventStream
from blade_llm.engine.client import Outputs
from blade_llm.engine.messages import RequestOutput
from blade_protocol import headers
from blade_protocol.resume import BEFORE_ADAPTER, LOST, ResumeRequest, stream_key

RESUMED: Final = "blade_llm.resumed"
"""Where an ASGI scope has the :class:`ResumeRequest` that the request was made of."""
_REPLAYED_AT_ONCE: Final = 256
"""Groups replayed before the event loop serves other requests."""
_NOTHING_MORE: Final = b": \n\n"
_Fields = TypeVar("_Fields", bound=GenerationFields)
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable:
    """One stream, with what must be the same on every replica."""

    created: int
    seed: int
    prompt_digest: str
    """Without the adapter's content, which is known once the engine has begun."""
    key: str
    """Different for every stream, the same wherever it continues: ids of tool calls are derived from it."""
    sent_token_ids: Sequence[Sequence[int]] | None = None
    """Tokens of the lost engine, by event; None: the stream begins here."""
    adapter_digest: str = ""
    """What the content of the adapter must have, as the lost engine's had, in hexadecimal; empty: any will do."""

    @property
    def output_token_ids(self) -> list[int]:
        """All tokens of the lost engine."""
        return [token_id for group in self.sent_token_ids or () for token_id in group]

    def headers(self, adapter_digest: str) -> dict[str, str]:
        """What the router needs to resume the stream, computed with an adapter of that content, on another replica."""
        of_adapter = f"{BEFORE_ADAPTER}{adapter_digest}" if adapter_digest else ""
        return {
            headers.PROMPT_DIGEST: f"{self.prompt_digest}{of_adapter}",
            headers.SEED: str(self.seed),
            headers.CREATED: str(self.created),
        }


def seeded(fields: _Fields, request: Request) -> _Fields:
    """``fields`` with the seed that the router chose, where they have none. Raises :class:`ApiError` 400."""
    if fields.seed is not None:
        if abs(fields.seed) > MAX_SEED:
            raise bad_request(f"seed must be between {-(2**63)} and {2**63 - 1}", "seed")
        within = min(max(fields.seed, -(2**63)), 2**63 - 1)
        return fields if within == fields.seed else msgspec.structs.replace(fields, seed=within)
    resumed: ResumeRequest | None = request.scope.get(RESUMED)
    given = request.headers.get(headers.SEED)
    if resumed is not None:
        seed = resumed.seed
    elif given is None:
        return fields
    elif given.isascii() and given.isdigit():
        seed = int(given)
    else:
        raise bad_request(f"the header {headers.SEED} must be a number, not {given[:40]!r}", "seed")
    if not -(2**63) <= seed < 2**63:
        raise bad_request(f"seed must be between {-(2**63)} and {2**63 - 1}", "seed")
    return msgspec.structs.replace(fields, seed=seed)


def resumable(
    request: Request,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    search: Search,
    *,
    model: str,
    adapter: str,
    vocab_size: int,
    stream: bool,
    refused: str = "",
) -> Resumable | None:
    """How the stream of ``request`` can be resumed, or is being resumed; None: not requested, or impossible.

    Args:
        model: the name that the response carries.
        adapter: that of the adapter, empty for the base model.
        refused: a reason why it cannot that only its route knows.

    Raises :class:`ApiError` for a request to go on with what cannot be resumed (400), with token ids that are not an
    output's (400), or after a prompt that is not the same here (409).
    """
    resumed: ResumeRequest | None = request.scope.get(RESUMED)
    if resumed is None and (not stream or request.headers.get(headers.STREAM_IDS) != "1"):
        return None
    refused = refused or _why_not(prompts, search, stream=stream)
    if refused:
        if resumed is None:
            return None
        raise bad_request(f"this request cannot be resumed: {refused}")
    (prompt,) = prompts
    digest = _digest(prompt, model, fields.cache_salt)
    seed = prompt.sampling.seed
    assert seed is not None
    key = stream_key(request.state.request_id, seed, digest)
    if resumed is None:
        return Resumable(created=int(time.time()), seed=seed, prompt_digest=digest, key=key)
    prompt_digest, _, adapter_digest = resumed.prompt_digest.partition(BEFORE_ADAPTER)
    if prompt_digest != digest or bool(adapter_digest) != bool(adapter):
        message = "this replica makes another prompt of the request than the one that began to answer"
        raise ApiError(409, message, code="prompt_differs")
    given = Resumable(
        created=resumed.created,
        seed=seed,
        prompt_digest=digest,
        key=key,
        sent_token_ids=resumed.token_ids,
        adapter_digest=adapter_digest,
    )
    token_ids, most = given.output_token_ids, prompt.sampling.max_tokens
    if len(token_ids) > most:
        raise bad_request(f"token_ids has {len(token_ids)} ids, but the answer has at most {most}", "token_ids")
    if wrong := next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None):
        raise bad_request(f"token_ids: {wrong} is not between 0 and {vocab_size - 1}", "token_ids")
    return given


async def streamed(
    events: Events,
    result: GenerationResult,
    resumable: Resumable | None,
    settled: Callable[[], Awaitable[None]] | None = None,
) -> Response:
    """``events`` as a response, with token ids where the stream is ``resumable``, from where it broke off.

    ``settled``: see :class:`EventStream`.
    """
    if resumable is None:
        return EventStream(events, result.generation, settled=settled)
    with_ids = _WithIds(events)
    if resumable.sent_token_ids:
        try:
            await _replay(events, result, resumable.sent_token_ids)
        except BaseException:
            result.generation.close()
            raise
        if events.finished:  # and said so: only what ends a stream is missing
            result.generation.close()
            rest = with_ids.end()
            events.close()
            if settled is not None:
                await settled()
            known = resumable.headers(resumable.adapter_digest)
            return Response(rest, media_type="text/event-stream", headers=known)
    return EventStream(with_ids, result.generation, lambda: resumable.headers(result.adapter_digest), settled)


async def _replay(events: Events, result: GenerationResult, sent_token_ids: Sequence[Sequence[int]]) -> None:
    """Make every event again that was sent, and send none."""
    (choice,) = result.choices
    last = len(sent_token_ids) - 1
    for number, group in enumerate(sent_token_ids):
        ending = number == last
        output = RequestOutput(request_id="", token_ids=list(group))
        events.add([(0, choice.ended_by(output) if ending else output)])
        if events.finished:
            break
        if number % _REPLAYED_AT_ONCE == 0:
            await asyncio.sleep(0)
    choice.mark_replayed()


class _WithIds:
    """Ends what other events write with the ids of the tokens it was made of.

    What goes out in one piece is one group: its ids come last, so that whoever has them has all of it. The end of an
    output and that of its stream are one group.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._token_ids: list[int] = []
        """Ids of tokens without an event yet."""

    @property
    def finished(self) -> bool:
        return self._events.finished

    def add(self, outputs: Outputs) -> bytes:
        for _, output in outputs:
            self._token_ids += output.token_ids
        data = self._events.add(outputs)
        if not data or self._events.finished:
            return data
        token_ids, self._token_ids = self._token_ids, []
        return b"%b: %b\n\n" % (data, _encode(token_ids)[1:-1])

    def end(self) -> bytes:
        return self._events.end() + _NOTHING_MORE

    def failed(self, error: ApiError) -> bytes:
        return LOST if error.status >= 500 else self._events.failed(error) + _NOTHING_MORE

    def close(self) -> None:
        self._events.close()


def _why_not(prompts: Sequence[Prompt], search: Search, *, stream: bool) -> str:
    if not stream:
        return "it does not stream; send it again"
    if search.samples > 1 or search.beam_width or len(prompts) > 1:
        return "it has several answers"
    if prompts[0].only or prompts[0].sampling.prompt_logprobs is not None:
        return "it asks for log-probabilities of its prompt"
    return ""


def _digest(prompt: Prompt, model: str, cache_salt: str) -> str:
    """Sampling parameters belong to it: a replica that has other defaults would go on differently. The length does not:
    without ``max_tokens`` it is what the replica's memory has room for. What a URL shows may have changed."""
    sampling = msgspec.structs.replace(prompt.sampling, max_tokens=1)
    digest = hashlib.sha256(array("q", prompt.token_ids).tobytes())
    digest.update(_encode((model, cache_salt, sampling)))
    digest.update(b"".join(image.digest for image in prompt.images))
    return digest.hexdigest()
