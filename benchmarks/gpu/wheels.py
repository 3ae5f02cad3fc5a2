"""Packages for a GPU machine that has torch and Triton but neither all of our other dependencies nor a network.

``python -m benchmarks.gpu.wheels`` (``make gpu-wheels``) downloads them, in the versions of ``constraints.txt``, into
``build/gpu-wheels``, which travels with the working tree. There ``make gpu`` installs them into a folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu-wheels"
PACKAGES = {
    "msgspec": "msgspec",
    "pyzmq": "zmq",
    "fastapi": "fastapi",
    "opentelemetry-api": "opentelemetry",
    "starlette": "starlette",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic_core",
    "annotated-types": "annotated_types",
    "typing-inspection": "typing_inspection",
    "typing_extensions": "typing_extensions",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "pytest-asyncio": "pytest_asyncio",
    "llguidance": "llguidance",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
}
"""Distribution → module. All they need in turn is here (typing_extensions: recent enough for pydantic) or comes with
torch's usual companions."""
PLATFORMS = (
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def download(python_version: str = "3.12") -> None:
    """Fetch a wheel of each package for ``python_version`` on x86-64 Linux."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python_version, "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, "--dest", str(FOLDER), *_pinned()], check=True)
    wheels = sorted(FOLDER.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) >> 20} MiB, in {FOLDER}")


def use() -> None:
    """Where some of them are missing, put all before what is installed, for this process and its children.

    Raises ``SystemExit`` when it is missing and was not downloaded either.
    """
    missing = [name for name, module in PACKAGES.items() if find_spec(module) is None]
    if not missing:
        return
    wheels = sorted(FOLDER.glob("*.whl"))
    if len(wheels) < len(PACKAGES):
        raise SystemExit(f"missing: {', '.join(missing)}; install them, or bring them with `make gpu-wheels`")
    target = tempfile.mkdtemp(prefix="gpu-site-")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", target, *map(str, wheels)], check=True)
    sys.path.insert(0, target)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [target, os.environ.get("PYTHONPATH")]))


def _pinned() -> list[str]:
    """Requirements in the versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0].lower().replace("_", "-"): line.strip() for line in lines if "==" in line}
    return [pins.get(name.replace("_", "-"), name) for name in PACKAGES]


if __name__ == "__main__":
    download()
