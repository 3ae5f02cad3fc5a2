"""`helm test`: the operator is ready, the API serves LLMServices, and the operator's account may list them.

Runs in a pod of the operator's image; standard library only. Arguments: URL of the operator, then the namespaces it
watches (none: all). EXTERNAL_METRICS in the environment: the group of external metrics that the API serves, too.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = f"https://{os.environ.get('KUBERNETES_SERVICE_HOST')}:{os.environ.get('KUBERNETES_SERVICE_PORT')}"
EXTERNAL_METRICS = os.environ.get("EXTERNAL_METRICS", "")
PATIENCE = float(os.environ.get("PATIENCE", "60"))


def operator_is_ready(url: str) -> None:
    """Raises OSError unless ``/readyz`` answers 200."""
    urllib.request.urlopen(f"{url}/readyz", timeout=5).close()


def services_are_served(namespace: str | None) -> None:
    """Raises OSError unless this pod's account can list LLMServices (``None``: in all namespaces)."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    get(f"/apis/serving.bladellm.io/v1alpha1{scope}/llmservices?limit=1")


def get(path: str) -> None:
    """Raises OSError unless the API answers this pod's account with 200."""
    request = urllib.request.Request(f"{API}{path}")
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    urllib.request.urlopen(request, timeout=5, context=context).close()


def attempt(what: str, check: Callable[[], None]) -> bool:
    """Repeats ``check`` until it passes or patience ends; prints the outcome with the last reason."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            check()
        except OSError as error:
            detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
            if time.monotonic() >= deadline:
                print(f"FAILED  {what}: {error} {detail}".rstrip())
                return False
            time.sleep(1)
        else:
            print(f"ok      {what}")
            return True


def main(url: str, namespaces: list[str]) -> int:
    passed = [attempt(f"the operator is ready ({url}/readyz)", partial(operator_is_ready, url))]
    everywhere: list[str | None] = [None]
    for namespace in namespaces or everywhere:
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        passed.append(attempt(f"LLMServices can be listed {where}", partial(services_are_served, namespace)))
    if EXTERNAL_METRICS:
        what = f"the API server reaches the operator's external metrics ({EXTERNAL_METRICS})"
        passed.append(attempt(what, partial(get, f"/apis/{EXTERNAL_METRICS}/v1beta1")))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
