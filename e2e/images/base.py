"""A stand-in for the public Python base image, for machines that reach Debian packages but no registry.

It carries the public name, so the Dockerfiles' ``FROM`` stays as it is. Same Debian release and same minor version of
Python; but Python is Debian's own, in /usr/bin, and packages are those of the point release, without security updates:
good for tests, not for release.
"""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from e2e.images import cache
from e2e.images.buildah import Buildah
from e2e.images.errors import ImageError

NAME = "docker.io/library/python:3.11-slim-bookworm"
RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
USELESS = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
)
"""Folders emptied in the image, as slim images do."""
KEY = hashlib.sha256(repr((RELEASE, PACKAGES, USELESS)).encode()).hexdigest()[:16]


def ensure(buildah: Buildah, folder: Path) -> None:
    """Have the image ``NAME`` in buildah's storage: already there, from the cached archive, or by debootstrap."""
    keyed = f"localhost/base:{KEY}"
    if not buildah.output("images", "--quiet", keyed):
        archive = folder / f"base-{KEY}.tar"
        if not archive.exists():
            bootstrap(archive)
        container = buildah.output("from", "scratch")
        buildah("add", container, str(archive), "/")
        buildah("config", "--cmd", "python3", container)
        buildah("commit", "--rm", container, keyed)
        cache.prune(folder, "base-*.tar", keep=1)
    buildah("tag", keyed, NAME)


def bootstrap(archive: Path) -> None:
    """Make the root file system as the tar file ``archive``: under a minute.

    Raises:
        ImageError: debootstrap failed; its last lines are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="base-", dir=archive.parent) as work:
        root = Path(work) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(root), mirror()]
        # In a mount namespace of its own: whatever happens, no /proc stays mounted inside the folder to be removed.
        done = subprocess.run(["unshare", "--mount", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise ImageError(f"debootstrap failed ({done.returncode}); it needs root and {mirror()}:\n{tail}")
        (root / "etc/apt/sources.list").write_text(f"deb http://deb.debian.org/debian {RELEASE} main\n")
        for name in USELESS:
            subprocess.run(["find", str(root / name), "-mindepth", "1", "-delete"], check=True)
        partial = archive.with_suffix(".partial")
        subprocess.run(["tar", "-C", str(root), "--sort=name", "--numeric-owner", "-cf", str(partial), "."], check=True)
        partial.rename(archive)


def mirror() -> str:
    """Where this machine gets packages of ``RELEASE`` from, else Debian's own address."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Release: {RELEASE}", "Component: main"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "http://deb.debian.org/debian"
    return next(iter(listed.stdout.split()), "http://deb.debian.org/debian")
