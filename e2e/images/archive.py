"""What is inside an image archive, read without unpacking it: user, labels, and each layer's size and file names."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Layer:
    """One layer: its size in bytes (uncompressed) and the paths it adds, without a leading slash."""

    size: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """An image as its archive has it; ``layers`` from the bottom up, ``config`` as the OCI image specification says."""

    tags: tuple[str, ...]
    config: dict[str, Any]
    layers: tuple[Layer, ...]


def read(path: Path, skip: int = 0) -> Contents:
    """Read the docker archive ``path``; the lowest ``skip`` layers (those of the base) are left out.

    Raises:
        KeyError, tarfile.TarError: it is not such an archive.
    """
    with tarfile.open(path) as archive:
        manifest = json.loads(_content(archive, "manifest.json"))[0]
        image = json.loads(_content(archive, manifest["Config"]))
        layers = [_layer(archive, name) for name in manifest["Layers"][skip:]]
    return Contents(tuple(manifest["RepoTags"] or ()), image.get("config", {}), tuple(layers))


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _layer(archive: tarfile.TarFile, name: str) -> Layer:
    with tarfile.open(fileobj=archive.extractfile(name)) as layer:
        names = tuple(member.name.removeprefix("./").rstrip("/") for member in layer)
    return Layer(archive.getmember(name).size, names)
