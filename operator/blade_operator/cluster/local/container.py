"""One container of a pod: started, probed, restarted with back-off, and adopted by the next control loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from blade_operator.cluster.local import clock, environment, pod_status, ports
from blade_operator.cluster.local.errors import ContainerConfigError, PortInUse
from blade_operator.cluster.local.layout import progress_file
from blade_operator.cluster.local.listeners import Listeners
from blade_operator.cluster.local.logs import ContainerLogs
from blade_operator.cluster.local.probes import Probe, watch
from blade_operator.cluster.local.process import Process, ProcessId
from blade_operator.model.objects import Object
from blade_protocol.environment import LISTEN_FD, PROGRESS_FILE, TERMINATION_LOG, TERMINATION_LOG_MAX_BYTES

BACKOFF_BASE = 1.0
BACKOFF_CAP = 30.0
BACKOFF_RESET = 60.0
"""Seconds. The first restart is at once, as in Kubernetes; a run longer than the reset counts as healthy."""

UNKNOWN_EXIT_CODE = 255
"""The exit code that containerd reports for a container whose end it did not observe."""


@dataclass(frozen=True, slots=True)
class PodContext:
    """Everything that a container needs from its pod."""

    pod: Object
    folder: Path
    lookup: environment.Lookup
    mounts: Callable[[Object], Mapping[str, Path]]
    inherited: Callable[[], Mapping[str, str]]
    """Returns the environment that every container inherits."""
    listeners: Listeners
    replace: Callable[[str], None]
    """Called, with the reason, when the pod cannot run as it is and is to be made anew."""
    changed: Callable[[], None]
    """Called after each change of a container's status."""
    event: Callable[[Literal["Normal", "Warning"], str, str], None]


class Container:
    """Runs one container and keeps ``status`` (a ``ContainerStatus``) up to date."""

    def __init__(self, spec: Object, known: Object | None, context: PodContext, *, waiting: str) -> None:
        self.spec = spec
        self.name = str(spec["name"])
        self.status = known or pod_status.container_status(self.name, spec.get("image", ""), waiting)
        self._context = context
        self._process: Process | None = None
        self._host_port: int | None = next((p["hostPort"] for p in spec.get("ports", []) if "hostPort" in p), None)
        self._listener: int | None = None
        """Descriptor of that port's socket. Kept over a restart, so that connections wait, but not during back-off."""
        self._grace = float(context.pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._delay = 0.0
        self.logs = ContainerLogs(context.folder / "logs" / self.name)
        self._termination_log = context.folder / "termination" / self.name

    async def run_until_success(self) -> None:
        """Run an init container, or one of a Job, again and again until it exits with 0."""
        while not pod_status.succeeded(self.status):
            code = await self._run_once()
            if code != 0:
                await self._back_off()

    async def run_forever(self) -> None:
        """Run a main container again and again."""
        while True:
            await self._run_once()
            await self._back_off()

    async def stop(self, grace: float, hurry: asyncio.Event) -> None:
        """Send SIGTERM, and SIGKILL after ``grace`` seconds or once ``hurry`` is set; returns when none is left."""
        self._adopt()
        if self._process is None:
            return
        process = self._process
        self._stop_listening()
        process.signal(signal.SIGTERM)
        waits = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(hurry.wait())]
        await asyncio.wait(waits, timeout=max(0.0, grace), return_when=asyncio.FIRST_COMPLETED)
        waits[1].cancel()
        process.kill()
        self._ended(await waits[0])

    def detach(self) -> None:
        """Stop watching and leave the program running."""
        if self._process is not None:
            self._process.detach()

    async def _run_once(self) -> int:
        self._adopt()
        if self._process is None and not self._start():
            return 1
        assert self._process is not None
        probes = asyncio.create_task(self._probe(self._process))
        try:
            code = await self._process.wait()
        finally:
            probes.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probes
        return self._ended(code)

    def _adopt(self) -> None:
        """Adopt the program that an earlier control loop started, or record that it ended meanwhile."""
        if self._process is not None or "running" not in self.status["state"]:
            return
        identity = ProcessId.parse(self.status.get("containerID", ""))
        self._process = Process.adopt(identity) if identity is not None else None
        if self._process is None:
            self._ended(None)

    def _start(self) -> bool:
        status = self.status
        if "terminated" in status["state"]:
            status["lastState"] = {"terminated": status["state"]["terminated"]}
        attempt = status["restartCount"] + bool(status["lastState"])
        try:
            self._require_ports()
            argv, variables = self._command()
            self._termination_log.parent.mkdir(parents=True, exist_ok=True)
            self._termination_log.write_bytes(b"")
            inherited: tuple[int, ...] = ()
            if self._host_port is not None:
                self._listener = self._listener or self._context.listeners.share(self._host_port)
                inherited = (self._listener,)
                variables[LISTEN_FD] = str(self._listener)
            self._process = Process.start(argv, variables, self._context.folder, self.logs.open(attempt), inherited)
        except (ContainerConfigError, PortInUse, OSError) as error:
            self._stop_listening()
            reason = "CreateContainerConfigError" if isinstance(error, ContainerConfigError) else "RunContainerError"
            self._set({"waiting": {"reason": reason, "message": str(error)}})
            self._context.event("Warning", "Failed", f"Error: {error}")
            return False
        status["restartCount"] = attempt
        status["containerID"] = str(self._process.identity)
        started = self._probe_named("startupProbe") is None
        status["started"] = started
        status["ready"] = started and self._probe_named("readinessProbe") is None
        self._set({"running": {"startedAt": clock.stamp(clock.now())}})
        self._context.event("Normal", "Started", f"Started container {self.name}")
        return True

    def _require_ports(self) -> None:
        """Raises PortInUse, and has the pod made anew, when somebody took one of its ports since it was chosen."""
        taken = next(
            (p["containerPort"] for p in self.spec.get("ports", []) if not ports.is_free(p["containerPort"])), 0
        )
        if taken:
            message = f"port {taken} was taken by {ports.holder(taken)}: another one is chosen"
            self._context.replace(message)
            raise PortInUse(message)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        mounts = self._context.mounts(self.spec)
        own = environment.variables(self.spec, self._context.pod, self._context.lookup)
        argv = environment.arguments(self.spec, own, mounts)
        variables = {name: environment.translate(value, mounts) for name, value in own.items()}
        files = {TERMINATION_LOG: str(self._termination_log)}
        if self._context.pod["spec"].get("restartPolicy") == "OnFailure":  # of a Job
            files[PROGRESS_FILE] = str(progress_file(self._context.folder))
        return argv, {**self._context.inherited(), **files, **variables}

    def _stop_listening(self) -> None:
        if self._listener is not None and self._host_port is not None:
            self._context.listeners.release(self._host_port)
            self._listener = None

    def _ended(self, code: int | None) -> int:
        """Record the end of the current run; returns its exit code."""
        started_at = self.status["state"].get("running", {}).get("startedAt", "")
        known = UNKNOWN_EXIT_CODE if code is None else code
        reason = "Unknown" if code is None else "Completed" if code == 0 else "Error"
        terminated: dict[str, Any] = {
            "exitCode": known,
            "reason": reason,
            "startedAt": started_at,
            "finishedAt": clock.stamp(clock.now()),
            "containerID": self.status.get("containerID", ""),
        }
        if known > 128 and code is not None:
            terminated["signal"] = known - 128
        message = self._read_termination_log(known)
        if code is None:
            message = f"ended when no control loop was its parent, so its exit code is not known\n{message}".rstrip()
        if message:
            terminated["message"] = message
        self._process = None
        self.status["ready"] = self.status["started"] = False
        self._set({"terminated": terminated})
        return known

    def _read_termination_log(self, code: int) -> str:
        try:
            text = self._termination_log.read_bytes()[:TERMINATION_LOG_MAX_BYTES].decode(errors="replace")
        except FileNotFoundError:
            text = ""
        if not text and code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            text = self.logs.tail(self.status["restartCount"])
        return text

    async def _back_off(self) -> None:
        terminated = self.status["state"].get("terminated")
        if terminated is None:  # it never started: try again soon, there is nothing to restart
            await asyncio.sleep(BACKOFF_BASE)
            return
        if _seconds(terminated) > BACKOFF_RESET:
            self._delay = 0.0
        self.status["lastState"] = {"terminated": terminated}
        if self._delay:
            self._stop_listening()
            self._set(
                {
                    "waiting": {
                        "reason": "CrashLoopBackOff",
                        "message": f"back-off {self._delay:g}s restarting failed container={self.name} "
                        f"pod={self._context.pod['metadata']['name']}",
                    }
                }
            )
            self._context.event("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
            await asyncio.sleep(self._delay)
        self._delay = min(BACKOFF_CAP, self._delay * 2 or BACKOFF_BASE)

    async def _probe(self, process: Process) -> None:
        """Run the startup probe first, then readiness and liveness probes concurrently, until cancelled."""
        startup = self._probe_named("startupProbe")
        if startup is not None and not self.status["started"]:
            await watch(startup, lambda good, why: self._startup(process, good, why), eager=True)
            if not self.status["started"]:
                return
        if not self.status["started"]:
            self.status["started"] = True
            self._context.changed()
        watches = []
        if (readiness := self._probe_named("readinessProbe")) is not None:
            watches.append(watch(readiness, self._readiness, eager=not self.status["ready"]))
        if (liveness := self._probe_named("livenessProbe")) is not None:
            watches.append(watch(liveness, lambda good, why: self._liveness(process, good, why)))
        await asyncio.gather(*watches)

    def _startup(self, process: Process, good: bool, why: str) -> bool:
        if not good:
            self._unhealthy(process, "startup", why)
            return False
        self.status["started"] = True
        self.status["ready"] = self._probe_named("readinessProbe") is None
        self._context.changed()
        return False

    def _readiness(self, good: bool, why: str) -> bool:
        if self.status["ready"] != good:
            self.status["ready"] = good
            self._context.changed()
            if not good:
                self._context.event("Warning", "Unhealthy", f"Readiness probe failed: {why}")
        return True

    def _liveness(self, process: Process, good: bool, why: str) -> bool:
        if not good:
            self._unhealthy(process, "liveness", why)
        return good

    def _unhealthy(self, process: Process, probe: str, why: str) -> None:
        self._context.event("Warning", "Unhealthy", f"{probe.capitalize()} probe failed: {why}")
        self._context.event("Normal", "Killing", f"Container {self.name} failed {probe} probe, will be restarted")
        process.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._grace, process.kill)

    def _probe_named(self, name: str) -> Probe | None:
        return Probe.of(self.spec, name)

    def _set(self, state: Object) -> None:
        self.status["state"] = state
        self._context.changed()


def _seconds(terminated: Object) -> float:
    """Duration of a run."""
    moments: list[datetime] = [
        clock.parse(terminated[name]) for name in ("startedAt", "finishedAt") if terminated[name]
    ]
    return (moments[1] - moments[0]).total_seconds() if len(moments) == 2 else 0.0


def base_environment() -> dict[str, str]:
    """The environment that every container inherits: this user's (proxies, certificates, caches) without our names."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BLADE_")}
