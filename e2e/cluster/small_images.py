"""The two images a node cannot do without: the pause container, and a shell for tests. Both are one static busybox.

A docker archive is a tar of a tar and two JSON files, so neither a registry nor a builder is needed.
"""

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

from e2e.cluster.node import PAUSE_IMAGE

SHELL_IMAGE = "localhost/busybox:1"
LINKS = ["sh", "cat", "echo", "ls", "sleep", "nslookup", "nc", "id", "env", "true", "false", "dd", "touch"]
"""No wget: a static one crashes when it resolves a name."""

# As process 1 a shell without a trap would ignore SIGTERM; `wait` also reaps orphans of a shared process namespace.
PAUSE = ["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 2147483 & wait $!; done"]


def write_archive(target: Path) -> None:
    """Both images in one docker archive; raises RuntimeError when there is no static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise RuntimeError("busybox is missing: run `make e2e-deps` (Debian package busybox-static)")
    layer = _layer(Path(busybox).read_bytes())
    with tarfile.open(target, "w") as archive:
        _add(archive, "layer.tar", layer)
        manifest = []
        for tag, command in ((PAUSE_IMAGE, PAUSE), (SHELL_IMAGE, ["/bin/sh"])):
            config = _config(layer, command)
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, name, config)
            manifest.append({"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox, mode=0o755)
        for name in LINKS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def _config(layer: bytes, command: list[str]) -> bytes:
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    return json.dumps(content).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
