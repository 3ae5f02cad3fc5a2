"""English prose to train, calibrate and score with: the manuals of Perl, Git, Python and PostgreSQL.

Debian and what is made of it have them as packages (``perl-doc``, ``git-doc``, ``python3-doc``, ``postgresql-doc``),
under licences that let anybody read and copy them. They are downloaded into the cache, not installed, and nothing of
them is in this repository. ``QUANT_CORPUS=FOLDER`` takes ``*.txt`` files instead, each a document, with an empty line
between paragraphs.

Documents, not lines, are split: what is scored comes from pages that neither training nor calibration has seen. A
paragraph that stands in several documents is kept in the first alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.quantization.prose import html_paragraphs, plain_paragraphs, pod_paragraphs

PACKAGES: Final = ("perl-doc", "git-doc", "python3-doc", "postgresql-doc")
_SKIPPED: Final = re.compile(r"changelog|genindex|/release-|perltoc|perluniprops|perlapi|/bookindex|RelNotes")
"""Indexes, and lists of changes, that repeat each other in the words of commits."""
_READERS: Final[dict[str, Callable[[str], list[str]]]] = {".html": html_paragraphs, ".pod": pod_paragraphs}
_OWN_TEXTS: Final = "set QUANT_CORPUS to a folder with 100 or more text files (*.txt, 10 MB or more in all)"
LEAST_CHARACTERS: Final = 500
"""Of a document."""


class CorpusError(RuntimeError):
    """There is no text to train with; the message says what to install."""


@dataclass
class Corpus:
    """Texts of each part, a document each; paragraphs are apart by a newline."""

    train: list[str] = field(default_factory=list)
    calibration: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """SHA-256 of all texts: another release of the packages has another."""
        summary = hashlib.sha256()
        for text in (*self.train, "\0", *self.calibration, "\0", *self.held_out):
            summary.update(text.encode() + b"\0")
        return summary.hexdigest()


def cache_folder() -> Path:
    """Where texts and the trained model are kept: ``$XDG_CACHE_HOME/bladellm/bench-quant``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm" / "bench-quant"


def load_corpus(cache: Path) -> Corpus:
    """The corpus, downloaded into ``cache`` where it is not there yet.

    Raises:
        CorpusError: it cannot be had here, or ``QUANT_CORPUS`` has too little text.
    """
    if own := os.environ.get("QUANT_CORPUS"):
        files = sorted(Path(own).glob("**/*.txt"))
        corpus = split((str(each.relative_to(own)), plain_paragraphs(_text(each))) for each in files)
        if not (corpus.train and corpus.calibration and corpus.held_out):
            raise CorpusError(f"QUANT_CORPUS={own} has {len(files)} files *.txt, too few to split; give 100 or more")
        return corpus
    kept = cache / "corpus.json"
    if not kept.exists():
        corpus = split(_documents(_unpacked(cache / "corpus")))
        kept.with_suffix(".staging").write_text(json.dumps(asdict(corpus)), encoding="utf-8")
        kept.with_suffix(".staging").rename(kept)
    return Corpus(**json.loads(kept.read_text(encoding="utf-8")))


def split(documents: Iterator[tuple[str, list[str]]]) -> Corpus:
    """Documents (name, paragraphs) to parts, by a hash of their names: 1 of 20 held out, 1 of 20 for calibration."""
    corpus = Corpus()
    seen: set[str] = set()
    for name, paragraphs in documents:
        fresh = [each for each in dict.fromkeys(paragraphs) if each not in seen]
        seen.update(fresh)
        text = "\n".join(fresh)
        if len(text) < LEAST_CHARACTERS:
            continue
        part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 20
        (corpus.held_out if part == 0 else corpus.calibration if part == 1 else corpus.train).append(text)
    return corpus


def _documents(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Names without versions, so that they fall into the same parts in another release."""
    files = ((str(each.relative_to(folder)), each) for each in folder.rglob("*") if each.suffix in _READERS)
    for name, file in sorted(files):
        if not _SKIPPED.search(name) and not file.is_symlink():
            yield re.sub(r"\d+(\.\d+)*", "", name), _READERS[file.suffix](_text(file))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _unpacked(folder: Path) -> Path:
    """The packages' files under ``folder``, a folder for each."""
    if folder.exists():
        return folder
    if missing := [each for each in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(each) is None]:
        raise CorpusError(
            f"the corpus is made of the Debian packages {', '.join(PACKAGES)}, and this machine has no "
            f"{' and no '.join(missing)}; {_OWN_TEXTS}"
        )
    staging = folder.with_name(f"{folder.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    names = [_actual(each) for each in PACKAGES]
    _run(["apt-get", "download", "-q", *names], staging)
    for package in sorted(staging.glob("*.deb")):
        unpacked = staging / re.sub(r"[\d.-]+$", "", package.name.partition("_")[0])
        _run(["dpkg-deb", "-x", str(package.resolve()), str(unpacked.resolve())], staging)
        package.unlink()
    staging.rename(folder)
    return folder


def _actual(package: str) -> str:
    """The package with the files: ``python3-doc`` is empty and needs ``python3.11-doc``."""
    needed = _run(["apt-cache", "depends", "--important", package], None)
    versioned = re.search(r"Depends: (\S*\d\S*-doc\S*)", needed)
    return versioned.group(1) if versioned else package


def _run(command: list[str], folder: Path | None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CorpusError(
            f"{' '.join(command)} failed: {said}; run `apt-get update` as root and try again, or {_OWN_TEXTS}"
        )
    return done.stdout
