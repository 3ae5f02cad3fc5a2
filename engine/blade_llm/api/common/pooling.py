"""How a model's hidden states become one embedding, as its own folder says it.

Models made for embeddings keep that beside their weights, in the layout of sentence-transformers: ``modules.json``
names the folder of the pooling module (``1_Pooling`` where there is no such file), and its ``config.json`` has one
switch for each way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.json_files import read_json_object

Pooling = Literal["last", "mean", "cls"]
"""The state of the last token, the mean over all tokens, or the state of the first token."""

_WAYS: Final[dict[str, Pooling]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_SWITCH: Final = "pooling_mode_"


def find_pooling(folder: Path) -> Pooling | None:
    """What the model in ``folder`` was trained with; None when it does not say.

    Raises :class:`TokenizerFilesError` for a way there is not here (weighted means, maxima, several joined),
    and for broken files.
    """
    named = _pooling_folder(folder)
    config = folder / (named or "1_Pooling") / "config.json"
    if named is not None and not config.is_file():
        raise TokenizerFilesError(f"{config} is missing, which modules.json names; fetch it, or give --pooling")
    switches = read_json_object(config)
    on = [name for name, value in switches.items() if name.startswith(_SWITCH) and value is True]
    if not on:
        return None
    if len(on) > 1 or on[0] not in _WAYS:
        ways = " and ".join(name.removeprefix(_SWITCH) for name in on)
        raise TokenizerFilesError(
            f"{config}: the model pools by {ways}, which is not available; "
            "give --pooling last, mean or cls to do otherwise"
        )
    return _WAYS[on[0]]


def require_causal(folder: Path) -> None:
    """Refuse a model with bidirectional attention: some embedding models have it, under the name of the causal one.

    Raises :class:`TokenizerFilesError`.
    """
    path = folder / "config.json"
    if read_json_object(path).get("is_causal") is False:
        raise TokenizerFilesError(
            f"{path}: the model attends in both directions (is_causal is false), which is not available; "
            "its embeddings would be wrong: use another model"
        )


def _pooling_folder(folder: Path) -> str | None:
    """Where ``modules.json`` says that pooling is configured."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return next((str(each["path"]) for each in modules if each["type"].endswith(".Pooling")), None)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise TokenizerFilesError(f"{path} is no list of modules with type and path") from None
