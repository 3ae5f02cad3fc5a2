"""Loading, unloading and listing LoRA adapters: vLLM's routes for clients, where the server allows it, and those of the
internal port."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, refused_by_engine
from blade_llm.engine.messages import AdapterReply
from blade_protocol import paths
from blade_protocol.adapters import AdapterList, LoadAdapterRequest, UnloadAdapterRequest

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


async def load_for_client(context: ServerContext, request: Request) -> Response:
    """``POST /v1/load_lora_adapter``: load a folder below the allowed roots. Raises :class:`ApiError`."""
    _require_permission(context)
    fields = await _read(context, request, LoadAdapterRequest)
    _check(await context.client.load_adapter(fields.lora_name, fields.lora_path, only_allowed_roots=True))
    return PlainTextResponse(f"Success: LoRA adapter '{fields.lora_name}' added successfully.")


async def unload_for_client(context: ServerContext, request: Request) -> Response:
    """``POST /v1/unload_lora_adapter``. Raises :class:`ApiError`."""
    _require_permission(context)
    fields = await _read(context, request, UnloadAdapterRequest)
    _check(await context.client.unload_adapter(fields.lora_name))
    return PlainTextResponse(f"Success: LoRA adapter '{fields.lora_name}' removed successfully.")


CLIENT_ROUTES: Final = {
    paths.LOAD_ADAPTER: load_for_client,
    paths.UNLOAD_ADAPTER: unload_for_client,
}
"""vLLM's routes on the public port."""


async def load(context: ServerContext, request: Request) -> Response:
    """Load a folder, or what the model loader finds elsewhere. Repeated for the same adapter it changes nothing.

    The response lists all adapters when it is done; without ``wait`` it is a 202 with this one, or a 200 where nothing
    is left to be done.
    """
    fields = await _read(context, request, LoadAdapterRequest)
    reply = _check(
        await context.client.load_adapter(
            fields.lora_name,
            fields.lora_path,
            pinned=fields.pinned,
            wait=fields.wait,
            replace=fields.replace,
            register_only=fields.register_only,
        )
    )
    if fields.wait:
        return await listed(context, request)
    return JSONResponse(msgspec.to_builtins(reply.adapters[0]), 202 if reply.pending else 200)


async def unload(context: ServerContext, request: Request) -> Response:
    """Forget an adapter; requests that have begun with it end normally."""
    fields = await _read(context, request, UnloadAdapterRequest)
    _check(await context.client.unload_adapter(fields.lora_name))
    return await listed(context, request)


async def listed(context: ServerContext, request: Request) -> Response:
    """All adapters, with where they are."""
    reply = _check(await context.client.list_adapters())
    return JSONResponse(msgspec.to_builtins(AdapterList(adapters=reply.adapters)))


def _require_permission(context: ServerContext) -> None:
    if not context.model.runtime_adapters:
        raise ApiError(
            404,
            "adapters are loaded by who runs this server; for clients to do it, start it with --enable_lora "
            "--allow_runtime_lora_updating",
            kind="not_found_error",
            code="adapters_not_updatable",
        )
    context.require_service()


async def _read(context: ServerContext, request: Request, kind: type[_Fields]) -> _Fields:
    try:
        return msgspec.convert(await read_json(request, context.max_body_bytes), kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from None


def _check(reply: AdapterReply) -> AdapterReply:
    if reply.error is not None:
        raise refused_by_engine(reply.error) or bad_request(str(reply.error))
    return reply
