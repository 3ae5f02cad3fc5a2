"""Where adapters may come from: folders below the allowed roots for clients, also hub ids and buckets for who runs the
server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blade_llm.hub.resolve import resolve_model
from blade_llm.models.errors import ModelFilesError

FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


def normalized(path: str) -> str:
    """The same for all ways of writing a path: home folder, doubled and trailing slashes."""
    if "://" in path:
        return path.rstrip("/")
    return os.path.normpath(os.path.expanduser(path))


def in_roots(path: str, roots: Sequence[str]) -> str:
    """Why the adapter in the folder ``path`` may not be read; empty: it may.

    What counts is where the folder and its files really are, links and ``..`` followed. The message says nothing about
    what is there.
    """
    if not roots:
        return (
            f"model {path!r} does not exist; adapters are served by path below --lora_allowed_roots, which is not given"
        )
    folder = os.path.realpath(os.path.expanduser(path))
    real_roots = [os.path.realpath(os.path.expanduser(root)) for root in roots]
    for place in (folder, *(os.path.realpath(os.path.join(folder, name)) for name in FILES)):
        if "\0" in place or not any(place == root or place.startswith(root.rstrip("/") + "/") for root in real_roots):
            return f"model {path!r} does not exist: it is not below a folder of --lora_allowed_roots"
    if not os.path.isdir(folder):
        return f"model {path!r} does not exist: there is no such folder"
    return ""


def find_folder(path: str) -> Path:
    """The folder of an adapter: a path, or what was downloaded of a hub or bucket. Raises ``ModelFilesError``."""
    folder = normalized(path)
    if os.path.isdir(folder):
        return Path(folder)
    if "://" not in folder and folder.startswith(("/", ".")):
        raise ModelFilesError(f"adapter folder {folder} does not exist; give a folder that PEFT wrote")
    return resolve_model(folder)
