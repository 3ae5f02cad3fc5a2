"""How far a program is, for those who look at its Job: an annotation of the Job, or a file for the local runtime."""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from blade_llm.weights.output_folder import write_whole
from blade_llm.weights.split.writer import Progress
from blade_protocol.environment import PROGRESS_FILE, PROGRESS_JOB
from blade_protocol.labels import PROGRESS

SECONDS: Final = 10.0
"""Between two reports at least: each is a write to the API server's database."""
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the pod's namespace, its token and what the API server's certificate is checked with."""
_TIMEOUT: Final = 5.0
_LAYER: Final = re.compile(r"\.(\d+)\.|layer (\d+)\b")
_TRY: Final = re.compile(r"(a try|smoothing), ")
Publish = Callable[[str], None]
"""Shows a line. Raises ``OSError`` where it cannot."""


class ProgressReport:
    """Publishes the latest line, from a thread of its own: a slow or missing API server never holds up the work."""

    def __init__(self, publish: Publish, seconds: float = SECONDS) -> None:
        self._publish, self._seconds = publish, seconds
        self._line = ""
        self._changed, self._ended = threading.Event(), threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Have ``line`` published, unless another one follows soon."""
        self._line = line
        self._changed.set()

    def end(self, line: str | None = None) -> None:
        """Publish a last line, the latest if none is given; returns when that is done, or takes too long."""
        if line is not None:
            self.say(line)
        self._ended.set()
        self._changed.set()
        self._thread.join(2 * _TIMEOUT)

    def counted(self, verb: str, layers: int, start: Callable[[int], Progress]) -> Callable[[int], Progress]:
        """``start``, and what it gives, with their work reported. ``layers``: of the model."""

        def started(total: int) -> Progress:
            inner, done, begin = start(total), 0, time.monotonic()

            def show(name: str, nbytes: int) -> None:
                nonlocal done
                done += nbytes
                seconds = time.monotonic() - begin
                left = seconds * max(0, total - done) / max(1, done)
                share = min(100, 100 * done / max(1, total))
                self.say(f"{verb}: {_where(name, layers)}, {share:.0f} %, about {left:.0f} s left")
                inner(name, nbytes)

            return show

        return started

    def _run(self) -> None:
        said = ""
        while True:
            self._changed.wait()
            self._changed.clear()
            last, line = self._ended.is_set(), self._line
            if line != said:
                said = line
                self._try(line)
            if last:
                return
            self._ended.wait(self._seconds)

    def _try(self, line: str) -> None:
        try:
            self._publish(line)
        except (OSError, ValueError) as error:  # ValueError: of a URL or a certificate that is none
            if not self._failed:
                print(f"progress is not shown: {error}; the work goes on", file=sys.stderr, flush=True)
            self._failed = True


@contextmanager
def job_progress(environment: Mapping[str, str] = os.environ) -> Iterator[ProgressReport | None]:
    """What reports to where the environment says; None where it says nothing. An error ends it, with its kind."""
    publish = publisher(environment)
    if publish is None:
        yield None
        return
    report = ProgressReport(publish)
    try:
        yield report
    except BaseException as error:
        report.end(f"stopped: {type(error).__name__}")
        raise
    report.end()


def publisher(environment: Mapping[str, str], account: Path = ACCOUNT) -> Publish | None:
    """What shows a line where ``environment`` says; None where it says nothing. ``account``: as :data:`ACCOUNT`."""
    if file := environment.get(PROGRESS_FILE):
        return lambda line: write_whole(Path(file), line.encode())
    job, host = environment.get(PROGRESS_JOB), environment.get("KUBERNETES_SERVICE_HOST")
    if not job or not host:
        return None
    address = f"[{host}]" if ":" in host else host
    server = f"https://{address}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
    return lambda line: annotate(server, job, line, account)


def annotate(server: str, job: str, line: str, account: Path = ACCOUNT) -> None:
    """Write ``line`` into the annotation of the Job of that name in the pod's namespace. Raises ``OSError``."""
    namespace = (account / "namespace").read_text().strip()
    request = urllib.request.Request(
        f"{server}/apis/batch/v1/namespaces/{namespace}/jobs/{job}?fieldManager=blade_llm_quantize",
        json.dumps({"metadata": {"annotations": {PROGRESS: line}}}).encode(),
        {
            "Content-Type": "application/merge-patch+json",
            "Authorization": f"Bearer {(account / 'token').read_text().strip()}",  # read anew: tokens are renewed
        },
        method="PATCH",
    )
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]  # the API server needs none
    if server.startswith("https:"):
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT):
        pass


def _where(name: str, layers: int) -> str:
    """The layer of a tensor, and what is tried in it; the name of one that is in none."""
    found = _LAYER.search(name)
    if found is None:
        return name
    tried = _TRY.match(name)
    what = f"{tried[1]}, " if tried else ""
    return f"{what}layer {int(found[1] or found[2]) + 1} of {layers}"
