"""The state of a stream that makes it resumable: requested from the engine, and read from the response's head."""

import random
from dataclasses import dataclass

import msgspec

from blade_protocol import headers as names
from blade_protocol import paths
from blade_protocol.resume import BEFORE_ADAPTER, ResumeRequest, response_number, stream_key
from blade_router.endpoints.endpoint import Endpoint
from blade_router.http.errors import Headers
from blade_router.request.output_size import samples
from blade_router.request.request import REQUEST_ID, ClientRequest
from blade_router.request.response_ids import caller_of

_PATHS = frozenset((paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES, paths.MESSAGES))
_IDS = b"%b: 1\r\n" % names.STREAM_IDS.encode()
_IDS_AND_SEED = b"%b%b: %%d\r\n" % (_IDS, names.SEED.encode())
_CREATED = names.CREATED.encode()
_SEED = names.SEED.encode()
_DIGEST = names.PROMPT_DIGEST.encode()
_PLACE = msgspec.Raw(b"0")
_AT_PLACE = b'"request":0'
"""Where the client's body goes: before it there is only the path, which is one of ``_PATHS``."""


def resume_headers(request: ClientRequest) -> bytes:
    """The header lines that request token ids; empty for a response that cannot be resumed anyway."""
    fields = request.fields
    if not fields.stream or request.path not in _PATHS or samples(fields) > 1:
        return b""
    return _IDS if fields.seed is not None else _IDS_AND_SEED % random.getrandbits(63)


def supports_resume(endpoint: Endpoint) -> bool:
    """It can write token ids, and send the rest of another replica's stream."""
    config = endpoint.config
    return config.engine == "blade" and bool(config.internal_url or endpoint.report.reported_at)


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What another replica needs to write the same stream."""

    request: ClientRequest
    request_id: str
    created: int
    seed: int
    prompt_digest: str
    service: str
    revision: str
    response_tag: str

    @property
    def response_id(self) -> str:
        """The id of the response that the stream is; empty for a stream of another API."""
        if not self.response_tag:
            return ""
        digest = self.prompt_digest.partition(BEFORE_ADAPTER)[0]
        return f"resp_{self.response_tag}_{response_number(stream_key(self.request_id, self.seed, digest))}"

    def _owner(self, key_name: str) -> tuple[str, str]:
        """Who may come back to the response: engines see an ``authorization`` only where the router has no keys."""
        if key_name:
            return caller_of(key_name), ""
        given = (value for name, value in self.request.headers if name == b"authorization")
        return "", next(given, b"").decode("latin-1")

    def body(self, token_ids: list[list[int]], key_name: str = "") -> tuple[bytes, bytes]:
        """The body of the request to resume after ``token_ids``: what stands before the client's own body, and what
        behind it. That one may be large, and is not copied. ``key_name``: of the client's API key."""
        whole = msgspec.json.encode(
            ResumeRequest(
                path=self.request.path,
                request=_PLACE,
                request_id=self.request_id,
                created=self.created,
                seed=self.seed,
                prompt_digest=self.prompt_digest,
                token_ids=token_ids,
                response_tag=self.response_tag,
                owner=self._owner(key_name) if self.response_tag else None,
            )
        )
        before, _, after = whole.partition(_AT_PLACE)
        return before + _AT_PLACE[:-1], after


def read_resume_state(request: ClientRequest, headers: Headers, endpoint: Endpoint) -> ResumeState | None:
    """Read it from the head of a response; None: this engine does not offer to be resumed."""
    found = dict(headers)
    digest, request_id = found.get(_DIGEST), found.get(REQUEST_ID)
    created, seed = found.get(_CREATED, b""), found.get(_SEED, b"")
    if not digest or not request_id:
        return None
    try:
        return ResumeState(
            request=request,
            request_id=request_id.decode("latin-1"),
            created=int(created),
            seed=int(seed),
            prompt_digest=digest.decode("latin-1"),
            service=endpoint.config.service,
            revision=endpoint.revision,
            response_tag=endpoint.response_tag if request.path == paths.RESPONSES else "",
        )
    except ValueError:
        return None
