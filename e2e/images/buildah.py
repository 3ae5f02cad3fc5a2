"""buildah with a storage of its own inside the cache, so that nobody's images are seen or touched."""

import shutil
import subprocess
from pathlib import Path

from e2e.images.errors import ImageError

STORAGE_LIMIT = 8 * 10**9
"""Bytes of layers worth keeping. Old dependency layers pile up; beyond this a clean start is cheaper than sorting."""


class Buildah:
    """Commands on the storage in ``folder``; all output goes to ``folder/build.log``."""

    def __init__(self, folder: Path) -> None:
        for program in ("buildah", "debootstrap"):
            if shutil.which(program) is None:
                raise ImageError(f"{program} is not installed; `make e2e-deps` installs it on Debian")
        self._log = folder / "build.log"
        self._storage = folder / "storage"
        self._options = [f"--root={self._storage}", f"--runroot={self._storage}/run"]
        self._log.unlink(missing_ok=True)

    def __call__(self, *arguments: str) -> None:
        """Run ``buildah ARGUMENTS``.

        Raises:
            ImageError: with the command and the end of what it printed.
        """
        with self._log.open("a") as log:
            done = subprocess.run(["buildah", *self._options, *arguments], stdout=log, stderr=log, check=False)
        if done.returncode:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
            raise ImageError(f"buildah {arguments[0]} failed ({done.returncode}), see {self._log}:\n{tail}")

    def output(self, *arguments: str) -> str:
        """What ``buildah ARGUMENTS`` prints; empty when it fails."""
        command = ["buildah", *self._options, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def trim(self) -> None:
        """Remove what a killed build left; forget all layers once they take more than ``STORAGE_LIMIT``."""
        self("rm", "--all")
        size = sum(file.lstat().st_size for file in self._storage.rglob("*"))
        if size > STORAGE_LIMIT:
            self("rmi", "--all", "--force")
