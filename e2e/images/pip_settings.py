"""This machine's pip settings, for the time of a build only.

Where a machine installs packages from is its own affair: its settings, its certificates and its folders of wheels are
mounted read-only while ``RUN`` steps run, and none of it reaches an image. Everything appears below ``/mnt``, which
every base image has, so that not even an empty mount point is left behind.
"""

import ast
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

INSIDE = "/mnt"
CONFIG = f"{INSIDE}/pip.conf"
COPIED = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "timeout",
    "default-timeout",
    "proxy",
)
CA_BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True)
class Mount:
    """A folder of this machine and where a ``RUN`` step sees it, read-only."""

    source: Path
    target: str

    def __str__(self) -> str:
        return f"{self.source}:{self.target}:ro"


def prepare(staging: Path) -> list[Mount]:
    """Fill the empty folder ``staging`` with a ``pip.conf`` and the CA bundle; return what to mount, in order."""
    settings = read_settings()
    mounts = [Mount(staging, INSIDE)]
    lines = ["[global]"]
    if bundle := ca_bundle(settings):
        shutil.copyfile(bundle, staging / "ca.pem")
        lines.append(f"cert = {INSIDE}/ca.pem")
    for key in COPIED:
        values = [_inside(value, mounts) for value in settings.get(key, "").split()]
        if values:
            lines.append(f"{key} = {' '.join(values)}")
    for mount in mounts[1:]:  # A mount point must exist, and the folder around it is read-only inside.
        (staging / Path(mount.target).relative_to(INSIDE)).mkdir(parents=True)
    (staging / "pip.conf").write_text("\n".join(lines) + "\n")
    return mounts


def read_settings() -> dict[str, str]:
    """What pip on this machine would use: option → value, from its files and from ``PIP_*``, the latter last."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_settings(listed.stdout.splitlines()) if listed.returncode == 0 else {}


def parse_settings(lines: Iterable[str]) -> dict[str, str]:
    """Lines of ``pip config list`` (``section.option='value'``); ``:env:`` outranks ``install``, that ``global``."""
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in lines:
        name, separator, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if separator and section in ranks and ranks[section] >= found.get(option, (-1, ""))[0]:
            found[option] = ranks[section], str(ast.literal_eval(value))
    return {option: value for option, (_, value) in found.items()}


def ca_bundle(settings: dict[str, str]) -> Path | None:
    """The certificates that this machine trusts, the one that pip is configured with first."""
    names = [settings.get("cert"), *map(os.environ.get, CA_BUNDLES), ssl.get_default_verify_paths().cafile]
    return next((Path(name) for name in names if name and Path(name).is_file()), None)


def _inside(value: str, mounts: list[Mount]) -> str:
    """``value`` as pip must see it inside: a folder of this machine gets a mount (appended), all else is kept.

    The index at ``file:///x/simple`` links to files beside it (``../files``), so the folder above it is mounted.
    """
    url = urlsplit(value)
    path = Path(unquote(url.path) if url.scheme == "file" else value)
    if url.scheme not in ("", "file") or not path.is_absolute() or not path.exists():
        return value
    target = f"{INSIDE}/{len(mounts)}"
    if url.scheme == "file":
        mounts.append(Mount(path.parent, target))
        return f"file://{target}/{path.name}"
    mounts.append(Mount(path, target))
    return target
