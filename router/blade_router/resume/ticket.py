"""Whether an engine is asked for a stream that can be resumed, and what its answer says for that."""

import random
from dataclasses import dataclass

import msgspec

from blade_protocol import headers as names
from blade_protocol import paths
from blade_protocol.resume import ResumeRequest
from blade_router.endpoints import Endpoint
from blade_router.errors import Headers
from blade_router.request import REQUEST_ID, ClientRequest

_PATHS = frozenset((paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES))
_IDS = b"%b: 1\r\n" % names.STREAM_IDS.encode()
_IDS_AND_SEED = b"%b%b: %%d\r\n" % (_IDS, names.SEED.encode())
_CREATED = names.CREATED.encode()
_SEED = names.SEED.encode()
_DIGEST = names.PROMPT_DIGEST.encode()


def asking(request: ClientRequest) -> bytes:
    """The header lines that ask for token ids; empty for an answer that cannot be resumed anyway."""
    fields = request.fields
    if not fields.stream or request.path not in _PATHS or fields.samples > 1:
        return b""
    return _IDS if fields.seed is not None else _IDS_AND_SEED % random.getrandbits(63)


def answers_resume(endpoint: Endpoint) -> bool:
    """It can write token ids, and be asked for the rest of another one's stream."""
    return endpoint.engine == "blade" and bool(endpoint.internal_url or endpoint.told_at)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What makes another replica write the same stream."""

    request: ClientRequest
    request_id: str
    created: int
    seed: int
    prompt_digest: str
    service: str
    revision: str

    def body(self, token_ids: list[list[int]]) -> bytes:
        """Of the request to go on after ``token_ids``."""
        return msgspec.json.encode(
            ResumeRequest(
                path=self.request.path,
                request=msgspec.Raw(self.request.body),
                request_id=self.request_id,
                created=self.created,
                seed=self.seed,
                prompt_digest=self.prompt_digest,
                token_ids=token_ids,
            )
        )


def ticket_of(request: ClientRequest, headers: Headers, endpoint: Endpoint) -> Ticket | None:
    """From the head of an answer; None: this engine does not offer to be resumed."""
    found = dict(headers)
    digest, request_id = found.get(_DIGEST), found.get(REQUEST_ID)
    created, seed = found.get(_CREATED, b""), found.get(_SEED, b"")
    if not digest or not request_id:
        return None
    try:
        return Ticket(
            request=request,
            request_id=request_id.decode("latin-1"),
            created=int(created),
            seed=int(seed),
            prompt_digest=digest.decode("latin-1"),
            service=endpoint.service,
            revision=endpoint.revision,
        )
    except ValueError:
        return None
