"""What a finished image must be: small, not root's, without torch where none belongs, without traces of its making."""

import re
from collections.abc import Iterable

from e2e.images.archive import Contents
from e2e.images.errors import ImageError

USER = "65532:65532"
LABELS = tuple(f"org.opencontainers.image.{name}" for name in ("title", "description", "version", "licenses"))
TORCH = r"/site-packages/(torch|nvidia|triton)/"
INSTALLED = re.compile(r"/site-packages/([^/]+)-[^/-]+\.dist-info/METADATA$")
PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
COMPILED = r"/blade_router/compiled/modules/[^/]+/blade_router__mypyc\.[^/]+\.so$"
LEFTOVERS = {
    "a compiler": r"(^|/)bin/([a-z0-9_-]+-)?(gcc|g\+\+|cc|c\+\+|clang|make)(-[0-9.]+)?$",
    "package lists": r"^var/(lib/apt/lists|cache/apt)/.",
    "pip, its cache or its settings": r"/site-packages/pip/|(^|/)\.cache/|(^|/)pip\.conf$",
    "something of a mount": r"^mnt/.",
    "sources or build files": r"^(source|package|wheel|opt/build)(/|$)|^requirements\.txt$",
}


def check(
    contents: Contents,
    *,
    limit: int | None,
    torch: bool,
    compiled: bool = False,
    entrypoint: tuple[str, ...] = (),
    requirements: Iterable[str] = (),
) -> int:
    """Check the layers above the base; return their size in bytes.

    Args:
        contents: the image without its base's layers.
        limit: the most bytes it may add to its base.
        torch: whether torch belongs in it.
        compiled: whether the router's hot path has to be in it, compiled.
        entrypoint: what the arguments of ``docker run`` go to.
        requirements: packages that have to be installed, as ``pyproject.toml`` names them.

    Raises:
        ImageError: names everything that is wrong.
    """
    wrong = []
    names = [name for layer in contents.layers for name in layer.names]
    size = sum(layer.size for layer in contents.layers)
    if limit is not None and size > limit:
        wrong.append(f"it adds {size / 1e6:.0f} MB to its base, more than {limit / 1e6:.0f} MB")
    if torch != bool(found := first(TORCH, names)):
        wrong.append(f"it must not contain {found}" if found else "torch is missing")
    if compiled and not first(COMPILED, names):
        wrong.append("the router's hot path is not compiled in it")
    installed = {normalized(match[1]) for name in names if (match := INSTALLED.search(name))}
    if lacking := sorted({normalized(PROJECT.match(line)[0]) for line in requirements} - installed):  # type: ignore[index]
        wrong.append(f"packages are missing: {', '.join(lacking)}")
    for what, pattern in LEFTOVERS.items():
        if found := first(pattern, names):
            wrong.append(f"{what} stayed in it: {found}")
    if (user := contents.config.get("User")) != USER:
        wrong.append(f"it runs as user {user!r}, not {USER}")
    if (started := tuple(contents.config.get("Entrypoint") or ())) != entrypoint:
        wrong.append(f"its entry point is {list(started)}, not {list(entrypoint)}")
    if missing := [label for label in LABELS if not (contents.config.get("Labels") or {}).get(label)]:
        wrong.append(f"labels are missing: {', '.join(missing)}")
    if wrong:
        raise ImageError(f"{', '.join(contents.tags) or 'the image'}: " + "; ".join(wrong))
    return size


def normalized(name: str) -> str:
    """A package's name as all spellings of it compare (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def first(pattern: str, names: Iterable[str]) -> str | None:
    """The first name that ``pattern`` is found in."""
    return next((name for name in names if re.search(pattern, name)), None)
