"""What has to be alike on all machines of an engine, and the secret that they share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.engine.version import package_version
from blade_protocol import environment

_WEIGHTS: Final = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_MOST_FILES: Final = 512
"""More need not fit into the message that has them."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Of one machine's program and model."""

    version: str
    torch: str
    model: str
    """Digest of the model's ``config.json``."""
    weights: dict[str, int]
    """Sizes of the weight files that are directly in the model's folder; reading the files would take minutes."""

    def difference(self, leader: Identity) -> str | None:
        """Why a machine with this identity cannot compute with the leader's; None: it can."""
        if self.version != leader.version:
            return f"runs version {self.version} and machine 0 version {leader.version}: install one version on both"
        if self.torch != leader.torch:
            return f"has torch {self.torch} and machine 0 torch {leader.torch}: install one version on both"
        if self.model != leader.model:
            return "has another model than machine 0 (its config.json differs): give all machines the same --model"
        both = self.weights.keys() & leader.weights.keys()  # a machine may have its own part alone
        if other := sorted(name for name in both if self.weights[name] != leader.weights[name]):
            return (
                f"has another {other[0]} than machine 0 ({self.weights[other[0]]:,} bytes, there "
                f"{leader.weights[other[0]]:,}): give all machines the same files"
            )
        return None


def identity_of(model_dir: Path) -> Identity:
    """This machine's, with the model in ``model_dir``."""
    config = model_dir / "config.json"
    return Identity(
        version=package_version(),
        torch=package_version("torch"),
        model=hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else "",
        weights={path.name: path.stat().st_size for path in _weight_files(model_dir)},
    )


def shared_token() -> bytes:
    """The secret that all machines of a service have, from the file that the environment names; empty: there is none.

    Raises ``OSError``.
    """
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    return Path(path).read_bytes().strip() if path else b""


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if path.suffix in _WEIGHTS and path.is_file()][:_MOST_FILES]
