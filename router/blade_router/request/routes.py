"""The paths that are forwarded: those of inference, by the engine's software, and nothing else.

Engines have routes beside them that no client may reach: to load adapters, sleep, reset caches, profile, abort the
requests of others. New versions bring new ones, so what is not listed here is not forwarded.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from blade_protocol import paths
from blade_protocol.routing import EngineKind
from blade_router.http.errors import Refused

Routes = dict[str, frozenset[str]]
"""Path → its methods."""
_READ: Final = frozenset(("GET",))
_POST: Final = frozenset(("POST",))

EVERYWHERE: Final[Routes] = {
    paths.CHAT_COMPLETIONS: _POST,
    paths.COMPLETIONS: _POST,
    paths.RESPONSES: _POST,
    paths.MESSAGES: _POST,
    paths.COUNT_TOKENS: _POST,
    paths.EMBEDDINGS: _POST,
    paths.TOKENIZE: _POST,
    paths.DETOKENIZE: _POST,
    paths.MODELS: _READ,
    paths.VERSION: _READ,
    paths.OPENAPI: _READ,
    paths.DOCS: _READ,
}
SCORING: Final[Routes] = dict.fromkeys(
    (paths.SCORE, paths.SCORE_BARE, paths.RERANK, paths.RERANK_BARE, paths.RERANK_V2), _POST
)
_TOKENIZER: Final[Routes] = {paths.TOKENIZER_INFO: _READ}
_MORE: Final = dict.fromkeys((paths.SCORE, paths.RERANK, "/v1/classify"), _POST)
BY_KIND: Final[dict[EngineKind, Routes]] = {
    "blade": EVERYWHERE | SCORING | _TOKENIZER | {paths.INPUT_TOKENS: _POST},
    "vllm": EVERYWHERE | SCORING | _TOKENIZER | _MORE,
    "sglang": EVERYWHERE | _MORE | {"/v1/tokenize": _POST, "/v1/detokenize": _POST},
}
ANY_ROUTE: Final[Routes] = {path: methods for routes in BY_KIND.values() for path, methods in routes.items()}
_MODEL: Final = re.compile(rf"{paths.MODELS}/[^?]+")
_DOTS: Final = re.compile(r"/\.{0,2}/|/\.{1,2}$")
_NOT_PLAIN: Final = re.compile(rf"[%#]|{_DOTS.pattern}")
_STORED: Final = re.compile(rf"{paths.RESPONSES}/[\w.-]+(/cancel|/input_items)?")
"""A response that an engine keeps: to read, delete or cancel it."""


def check_path(path: str) -> None:
    """Refuse a path that is not in normal form: what is decided by path must hold for how an engine reads it.

    Raises:
        Refused: 400, it has ``.``, ``..`` or nothing as a part, or characters that are encoded, in other than a
            model's name.
    """
    if path in EVERYWHERE or _NOT_PLAIN.search(path) is None:
        return
    if path.startswith(f"{paths.MODELS}/") and "#" not in path and _DOTS.search(unquote(path)) is None:
        return
    raise Refused(400, f"the path {path} is not in its plain form; send it as documented", code="invalid_path")


def check_route(method: str, path: str) -> None:
    """Refuse what no engine may be sent.

    Raises:
        Refused: 404, the path is none of inference; 405, it has other methods.
    """
    methods = methods_of(path)
    if method not in methods:
        raise not_allowed(method, path, methods)


def methods_of(path: str) -> frozenset[str]:
    """The methods that a path has, without ``HEAD``, which stands for ``GET``.

    Raises:
        Refused: 404, the path is none of inference.
    """
    methods = ANY_ROUTE.get(path)
    if methods is None:
        if _MODEL.fullmatch(path):
            methods = _READ
        elif stored := _STORED.fullmatch(path):
            methods = frozenset(("GET", "DELETE")) if not stored[1] else _POST if stored[1] == "/cancel" else _READ
        else:
            raise _unknown(path)
    return methods


def not_allowed(method: str, path: str, methods: frozenset[str]) -> Refused:
    """The 405 for a method that a path does not have, with those that it has in ``Allow``."""
    allowed = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
    return Refused(
        405,
        f"{method} is not supported for {path}; use {allowed}",
        code="method_not_allowed",
        headers=[(b"allow", allowed.encode())],
    )


def check_kinds(path: str, kinds: Iterable[EngineKind]) -> None:
    """Refuse a path that not all engines of a service have.

    Raises:
        Refused: 404.
    """
    if path in EVERYWHERE or path not in ANY_ROUTE:
        return
    if not all(path in BY_KIND[kind] for kind in kinds):
        raise _unknown(path)


def _unknown(path: str) -> Refused:
    return Refused(404, f"there is no {path} here; see the API's documentation for what there is", code="not_found")
