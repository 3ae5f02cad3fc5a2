"""What an engine tells only to those who hold its token: asked on the internal port.

Today that is one thing, the revision it runs: EndpointSlices do not carry it, and a rollout is followed by it.
"""

import asyncio
import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from blade_protocol import environment, headers, paths
from blade_protocol.state import EngineState
from blade_router.endpoints import Endpoint
from blade_router.upstream import BadAnswer, UpstreamError, connect

logger = logging.getLogger("blade_router.internal")

ANSWER_SECONDS = 2.0

_decode_state = msgspec.json.Decoder(EngineState).decode


class InternalApi:
    """The internal ports of the engines.

    Args:
        token_file: holds the token, and may change; it is read for each question. None: no token is sent.
    """

    def __init__(self, token_file: Path | None) -> None:
        self._token_file = token_file
        self._complaint = ""

    async def learn_revision(self, endpoint: Endpoint) -> None:
        """Ask an endpoint for its revision, if that is not known and it has an internal port. Never fails."""
        if endpoint.revision or not endpoint.internal_url:
            return
        try:
            endpoint.revision = (await self.state(endpoint.internal_url)).revision
        except (UpstreamError, OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            complaint = f"{endpoint.internal_url}: {error}"
            if complaint != self._complaint:
                logger.warning("the revision of endpoint %s is unknown: %s", endpoint.name, complaint)
            self._complaint = complaint

    async def state(self, url: str) -> EngineState:
        """``GET /internal/state``.

        Raises:
            UpstreamError: no answer, or not the state.
            OSError, ValueError: the token cannot be read, or the answer is none.
        """
        parts = urlsplit(url)
        head = f"GET {paths.INTERNAL_STATE} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        if self._token_file is not None:
            head += f"{headers.INTERNAL_TOKEN}: {self._token_file.read_text().strip()}\r\n"
        connection = await connect(parts.hostname or "", parts.port or 80, ANSWER_SECONDS)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection.send(f"{head}\r\n".encode("latin-1"), b"")
                await connection.response()
                body = b""
                while chunk := await connection.read():
                    body += chunk
        except TimeoutError:
            raise BadAnswer(f"no answer within {ANSWER_SECONDS:g} s") from None
        finally:
            connection.abort(ConnectionAbortedError())
        if connection.status != 200:
            raise BadAnswer(f"{paths.INTERNAL_STATE} answered {connection.status}")
        return _decode_state(body)


def internal_api() -> InternalApi:
    """With the token file that the environment names."""
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    return InternalApi(Path(path) if path else None)
