"""Which images the tests run, and the archives they come from."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Images:
    """References as pods name them."""

    engine: str
    operator: str


def images(environment: Mapping[str, str] = os.environ) -> Images:
    """``E2E_IMAGES`` (``engine=IMAGE,operator=IMAGE``), else what this tree builds; ValueError when it is malformed."""
    if setting := environment.get("E2E_IMAGES"):
        named = dict(part.partition("=")[::2] for part in setting.split(","))
        if set(named) != {"engine", "operator"} or not all(named.values()):
            raise ValueError(f"E2E_IMAGES={setting!r}: it must be engine=IMAGE,operator=IMAGE")
        return Images(named["engine"], named["operator"])
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    return Images(f"bladellm/engine:{version}", f"bladellm/operator:{version}")


def build_archives() -> list[Path]:
    """Docker archives of this tree's images, built unless they are cached; raises CalledProcessError."""
    command = [sys.executable, "-m", "e2e.images", "--print-archives"]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines() if line.strip()]
