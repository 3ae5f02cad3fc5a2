"""A model's configuration without its weights: for what can be said of it before gigabytes are downloaded."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Final

from blade_llm.hub.resolve import as_folder, parse_model
from blade_llm.models.errors import ModelFilesError

NAMES: Final = ("config.json", "generation_config.json")
"""The second is read for end-of-sequence ids, and may be missing."""


def configuration_folder(model: str, into: Path, *, revision: str | None = None) -> Path:
    """A folder with the ``config.json`` of ``model`` (see :func:`~blade_llm.hub.resolve.parse_model`): its own where it
    is here or in the hub library's cache, else ``into``, with no more than that downloaded.

    Raises :class:`ModelFilesError`, also for a GGUF file elsewhere, whose configuration is part of its weights.
    """
    found = parse_model(model, revision)
    if isinstance(found, Path):
        return as_folder(found)
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError

    from blade_llm.hub.download import TransportError, download
    from blade_llm.hub.failures import explain
    from blade_llm.hub.origins import list_files
    from blade_llm.hub.snapshot import cached_snapshot

    if snapshot := cached_snapshot(found):
        return as_folder(snapshot)
    if found.gguf:
        raise ModelFilesError(f"model {model}: a GGUF file holds its configuration; fetch it first (blade_llm_fetch)")
    if constants.HF_HUB_OFFLINE:
        raise ModelFilesError(f"model {model} is not in the cache and HF_HUB_OFFLINE forbids downloads; unset it")
    try:
        listing = list_files(found)
        into.mkdir(parents=True, exist_ok=True)
        for file in listing.files:
            if file.name in NAMES:
                download(
                    file,
                    into / file.name,
                    headers=listing.headers,
                    stop=Event(),
                    on_bytes=lambda count: None,
                    renew=listing.renew,
                )
    except (TransportError, HFValidationError, OSError) as error:
        raise explain(error, found, into) from error
    return into
