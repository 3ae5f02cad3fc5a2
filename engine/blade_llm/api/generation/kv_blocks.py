"""``x-blade-kv-blocks``: which KV blocks a prompt is made of, for a router that has no tokenizer.

With the response the router learns the digests under which it will find the prompt's prefix in engines' KV events. They
are computed here as the engine computes them (:mod:`blade_llm.cache.prefix_cache`), while the engine works.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.cache.events import cut
from blade_llm.cache.prefix_cache import HashChain, root_digest
from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.spec.vision.images import ImageSpan
from blade_protocol import headers

STRIDE: Final = 4
"""Blocks per digest: about as many characters as the blocks that routers cut text into."""
MAX_DIGESTS: Final = 512
"""Digests in a header; of a longer prompt fewer are sent, further apart."""
_MANY: Final = 1_024
"""Blocks from which hashing would hold up other requests' tokens."""


def remember_prompt(
    request: Request,
    token_ids: list[int],
    cache_salt: str,
    adapter: str | None = "",
    images: Sequence[ImageSpan] = (),
) -> None:
    """Remember the prompt of a request, if its sender wants to know its blocks. ``adapter``: digest of its adapter's
    content, in hexadecimal; empty for none, None where it is not known yet. ``images``: where the prompt has any."""
    if request.headers.get(headers.KV_BLOCKS) == "1" and adapter is not None:
        request.state.kv_prompt = (token_ids, cache_salt, bytes.fromhex(adapter), images)


async def with_blocks_header(request: Request, response: Response) -> Response:
    """The response, with the blocks of the prompt that was noted."""
    prompt: tuple[list[int], str, bytes, Sequence[ImageSpan]] | None = getattr(request.state, "kv_prompt", None)
    if prompt is not None:
        many = len(prompt[0]) > _MANY * BLOCK_SIZE
        value = await asyncio.to_thread(blocks_header, *prompt) if many else blocks_header(*prompt)
        response.headers[headers.KV_BLOCKS] = value
    return response


def blocks_header(
    token_ids: Sequence[int], salt: str = "", adapter: bytes = b"", images: Sequence[ImageSpan] = ()
) -> str:
    """``STRIDE:BASE64``; see :data:`blade_protocol.headers.KV_BLOCKS`. ``adapter``: digest of its content."""
    full = len(token_ids) // BLOCK_SIZE
    stride = max(STRIDE, -(-full // MAX_DIGESTS))
    chain = HashChain(root_digest(adapter=adapter, salt=salt), BLOCK_SIZE, images)
    chain.extend(token_ids, full - full % stride)
    digests = cut(chain.digests[stride - 1 :: stride])
    return f"{stride}:{base64.b64encode(digests).decode('ascii')}"
