"""A pod's volumes as folders: configuration as files that follow their objects, scratch space, and kept claims."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blade_operator.cluster.local import files
from blade_operator.cluster.local.environment import Lookup, contents, field_of
from blade_operator.cluster.local.errors import ContainerConfigError
from blade_operator.model.objects import Object

_OWN = ("/dev/shm", "/tmp")
"""Mount paths the machine has itself; what a volume there would limit is not limited here."""


class Volumes:
    """The volumes of one pod, below ``folder``; claims live in ``claims`` and outlive it."""

    def __init__(self, pod: Object, folder: Path, claims: Path, lookup: Lookup) -> None:
        self._pod = pod
        self._volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        self._folder = folder
        self._claims = claims / pod["metadata"]["namespace"]
        self._lookup = lookup

    def prepare(self) -> None:
        """Make every folder, and bring configuration files up to date. Repeat it to follow changes.

        Raises:
            ContainerConfigError: a ConfigMap or Secret is missing.
        """
        for volume in self._volumes.values():
            path = self._path(volume)
            path.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                self._write(volume["configMap"], "ConfigMap", volume["configMap"]["name"], path, 0o644)
            elif "secret" in volume:
                self._write(volume["secret"], "Secret", volume["secret"]["secretName"], path, 0o600)
            elif "downwardAPI" in volume:
                items = volume["downwardAPI"]["items"]
                fields = {item["path"]: field_of(self._pod, item["fieldRef"]["fieldPath"]) for item in items}
                _bring_up_to_date(path, {name: text.encode() for name, text in fields.items()}, 0o644)

    def mounts(self, container: Object) -> dict[str, Path]:
        """Mount path in the container → folder here; what the machine has itself is left out."""
        return {
            mount["mountPath"]: self._path(self._volumes[mount["name"]])
            for mount in container.get("volumeMounts", [])
            if mount["mountPath"] not in _OWN
        }

    def _path(self, volume: Object) -> Path:
        """The folder of a volume."""
        if "persistentVolumeClaim" in volume:
            return Path(self._claims, volume["persistentVolumeClaim"]["claimName"])
        return Path(self._folder, volume["name"])

    def _write(self, source: Object, kind: str, name: str, folder: Path, mode: int) -> None:
        content = contents(self._lookup(kind, name))
        if content is None:
            if source.get("optional"):
                return
            raise ContainerConfigError(f'{kind.lower()} "{name}" not found')
        if "items" in source:
            absent = [item["key"] for item in source["items"] if item["key"] not in content]
            if absent:
                raise ContainerConfigError(f'{kind.lower()} "{name}" has no key "{absent[0]}"')
            content = {item["path"]: content[item["key"]] for item in source["items"]}
        _bring_up_to_date(folder, content, mode)


def _bring_up_to_date(folder: Path, content: Mapping[str, bytes], mode: int) -> None:
    """Make the files in ``folder`` those of ``content``."""
    for key, value in content.items():
        path = folder / key
        if not path.is_file() or path.read_bytes() != value:
            files.write_atomic(path, value, mode=mode, durable=False)
    for path in folder.iterdir():
        if path.is_file() and path.name not in content:
            path.unlink()
