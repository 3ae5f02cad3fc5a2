"""HTTP probes with Kubernetes' fields and thresholds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from blade_operator.model.objects import Object

_HEAD_BYTES = 4096
_EAGER_PERIOD = 0.2


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of a container; times in seconds."""

    path: str
    port: int
    delay: float
    period: float
    timeout: float
    success: int
    failure: int
    secure: bool = False
    """Whether to use HTTPS, with any certificate: it names the service, not this address."""

    @staticmethod
    def of(container: Object, name: str) -> Probe | None:
        """The probe ``name`` (e.g. ``readinessProbe``) of a container, or None; its port is named in the container."""
        probe = container.get(name)
        if probe is None:
            return None
        name = probe["httpGet"]["port"]
        port = next(entry["containerPort"] for entry in container["ports"] if entry["name"] == name)
        return Probe(
            path=probe["httpGet"].get("path", "/"),
            port=port,
            delay=probe.get("initialDelaySeconds", 0),
            period=probe.get("periodSeconds", 10),
            timeout=probe.get("timeoutSeconds", 1),
            success=probe.get("successThreshold", 1),
            failure=probe.get("failureThreshold", 3),
            secure=probe["httpGet"].get("scheme", "HTTP") == "HTTPS",
        )


async def run_once(probe: Probe) -> str | None:
    """Run the probe once: None when it succeeded (status 200 to 399), else the reason why not."""
    try:
        async with asyncio.timeout(probe.timeout):
            status = await _get(probe)
    except TimeoutError:
        return f"no answer to GET {probe.path} within {probe.timeout:g} s"
    except (OSError, ValueError, EOFError) as error:
        return f"GET {probe.path} on port {probe.port}: {error}"
    return None if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"


async def _get(probe: Probe) -> int:
    secure = _unverified() if probe.secure else None
    reader, writer = await asyncio.open_connection("127.0.0.1", probe.port, limit=_HEAD_BYTES, ssl=secure)
    try:
        request = (
            f"GET {probe.path} HTTP/1.1\r\nHost: 127.0.0.1:{probe.port}\r\nConnection: close\r\nUser-Agent: probe\r\n"
        )
        writer.write(f"{request}\r\n".encode())
        line = await reader.readuntil(b"\r\n")
        return int(line.split(b" ", 2)[1])
    except (asyncio.LimitOverrunError, IndexError) as error:
        raise ValueError("the answer is not HTTP") from error
    finally:
        writer.close()


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def watch(probe: Probe, verdict: Callable[[bool, str], bool], *, eager: bool = False) -> None:
    """Run the probe periodically; calls ``verdict`` (success, reason) each time a threshold is reached or passed.

    Ends when ``verdict`` returns False. ``eager`` probes more often until the first success; failures still count
    once a period.
    """
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(probe.delay)
    good = bad = 0
    counts_from = clock()
    while True:
        why = await run_once(probe)
        if why is None:
            good, bad = good + 1, 0
        elif clock() >= counts_from:
            good, bad = 0, bad + 1
            counts_from = clock() + 0.9 * probe.period
        else:
            good = 0
        reached = good >= probe.success if why is None else bad >= probe.failure
        if reached and not verdict(why is None, why or ""):
            return
        eager = eager and why is not None
        await asyncio.sleep(min(probe.period, _EAGER_PERIOD) if eager else probe.period)
