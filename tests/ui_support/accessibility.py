"""axe-core, which looks for barriers in a page by the rules of WCAG 2.2 and good practice.

It is npm's, installed once into the user's cache: ``python -m ui_support.accessibility``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from clients_support.environments import cached_folder, fill_once
from playwright.sync_api import Page

_SOURCE = Path(__file__).parent / "npm"
_FILES = ("package.json", "package-lock.json")

_RUN = """
async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ target, failureSummary }) => `${id}: ${help}: ${target}: ${failureSummary}`));
}
"""


def install() -> None:
    """Fetch it, unless it is there.

    Raises:
        subprocess.CalledProcessError: npm failed.
        FileNotFoundError: there is no npm.
    """

    def fill(folder: Path) -> None:
        for name in _FILES:
            shutil.copy(_SOURCE / name, folder)
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)

    fill_once(_folder(), fill)


def script() -> Path:
    """Its script.

    Raises:
        FileNotFoundError: it is not installed.
    """
    path = _folder() / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        raise FileNotFoundError("axe-core is not installed: `make test-page` installs it")
    return path


def barriers(page: Page) -> list[str]:
    """What it finds, a line for each element; the page's context must not heed the policy of contents."""
    page.add_script_tag(path=script())
    found: list[str] = page.evaluate(_RUN)
    return found


def _folder() -> Path:
    return cached_folder("axe", *((_SOURCE / name).read_bytes() for name in _FILES))


if __name__ == "__main__":
    install()
