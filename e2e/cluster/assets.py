"""The Kubernetes programs: unpacked once from a folder of ``*.xz`` files, checked, and kept in the user's cache.

The cache folder's name is made from the folder's ``SHA256SUMS``, so new programs never mix with old ones. A program
gets its name there only after its checksum was verified.
"""

import contextlib
import hashlib
import lzma
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

KUBE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
"""Names under which the one binary ``kube`` is all these programs."""
NEEDED = ("kube", "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "helm")


class AssetError(Exception):
    """The assets folder is incomplete or damaged."""


def cache_folder() -> Path:
    """Everything the end-to-end tests keep between runs (programs, images)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "bladellm-e2e"


class Assets:
    """The programs in ``source`` (what KUBE_ASSETS names)."""

    def __init__(self, source: Path) -> None:
        self.source = source

    @cached_property
    def sums(self) -> dict[str, str]:
        """SHA-256 of each unpacked program."""
        try:
            lines = (self.source / "SHA256SUMS").read_text().splitlines()
        except OSError as error:
            raise AssetError(f"KUBE_ASSETS={self.source} holds no readable SHA256SUMS ({error})") from None
        return {name.lstrip("*"): digest for digest, name in (line.split() for line in lines if line.strip())}

    @cached_property
    def bin(self) -> Path:
        """Where the unpacked programs lie; use after `unpack`."""
        return cache_folder() / "bin" / hashlib.sha256(repr(sorted(self.sums.items())).encode()).hexdigest()[:16]

    def unpack(self, *names: str) -> None:
        """Make sure that these programs (by default all that a node needs) are in `bin`; raises AssetError."""
        self.bin.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool:  # lzma works outside the interpreter lock
            list(pool.map(self._unpack_one, names or NEEDED))
        for alias in KUBE:
            with contextlib.suppress(FileExistsError):
                (self.bin / alias).symlink_to("kube")

    def _unpack_one(self, name: str) -> None:
        target = self.bin / name
        if target.exists():
            return
        if name not in self.sums:
            raise AssetError(f"{self.source / 'SHA256SUMS'} does not list {name}")
        digest = hashlib.sha256()
        handle, temporary = tempfile.mkstemp(dir=self.bin, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "wb") as out, lzma.open(self.source / f"{name}.xz") as packed:
                while chunk := packed.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
            if digest.hexdigest() != self.sums[name]:
                raise AssetError(f"{self.source / name}.xz does not have the checksum that SHA256SUMS says")
            os.chmod(temporary, 0o755)
            os.replace(temporary, target)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise AssetError(f"cannot unpack {self.source / name}.xz: {error}") from error
        finally:
            Path(temporary).unlink(missing_ok=True)
