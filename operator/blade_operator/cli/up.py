"""``local up``: runs the control loop in the foreground and shows its user what happens."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from blade_operator.cli import manifests
from blade_operator.cli.change import named
from blade_operator.cli.errors import CommandError
from blade_operator.cli.prompt import embed, rerank, stream_chat
from blade_operator.cli.report import Reporter, is_ready, is_stalled
from blade_operator.cluster.local.commands import Commands, serve
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.logs import ContainerLogs
from blade_operator.cluster.local.runtime import Runtime
from blade_operator.cluster.local.services import port_of
from blade_operator.controller.controller import Controller
from blade_operator.fleet import Fleet
from blade_operator.model.objects import Object, Ref
from blade_operator.model.pods import FETCH
from blade_operator.program import program
from blade_operator.reconcile.reconcile import reconcile
from blade_protocol.labels import KIND, NAME

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP (the terminal was closed) unless it was ignored from the start, as ``nohup`` does."""


def run(options: argparse.Namespace) -> int:
    """Run until Ctrl-C, which deletes everything, or SIGTERM, which leaves services running, and return 0.

    1 when the service could not serve the prompt of ``--ask``, or the loop failed: then services go on, too.
    """
    if options.replicas is not None and options.model is None:
        raise CommandError("--replicas goes with --model; a manifest says it in spec.replicas")
    if options.idle_to_zero is not None and options.model is None:
        raise CommandError("--idle_to_zero goes with --model; a manifest says it in spec.scaling.idleToZero")
    if options.standby is not None and options.model is None:
        raise CommandError("--standby goes with --model; a manifest says it in spec.scaling.standby")
    if options.ask and not (options.model or options.filename):
        raise CommandError("--ask needs a service to ask: give --model or -f")
    layout = Layout.of(options.name)
    objects = manifests.read(options.filename)
    if options.model:
        replicas, standby = options.replicas or 1, options.standby or 0
        objects = [manifests.for_model(options.model, replicas, options.idle_to_zero, standby)]
    for obj in objects:
        obj["metadata"].setdefault("namespace", "default")
        manifests.admit(obj)
    return asyncio.run(_Up(layout, options, objects).run())


class _Up:
    def __init__(self, layout: Layout, options: argparse.Namespace, objects: list[Object]) -> None:
        self._layout = layout
        self._options = options
        self._objects = objects
        self._console = Console(highlight=False)
        self._reporter = Reporter(self._console)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leave = False
        """Whether services are to go on when the loop ends."""
        self._changed = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        runtime = Runtime(self._layout, self._options.port)
        handler = RichHandler(console=self._console) if self._console.is_terminal else logging.StreamHandler()
        logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_stop, number != signal.SIGINT)
        running = sum("running" in each["state"] for pod in runtime.store.find("Pod") for each in _statuses(pod))
        commands = Commands(runtime.store, manifests.admit)
        runtime.store.subscribe(self._on_change)
        failed = True
        try:
            runtime.start()
            if running:
                self._print(f"Took over {running} running programs of an earlier control loop.")
                kept = {port for each in runtime.store.find("Service") if (port := port_of(each)) is not None}
                if kept and self._options.port not in kept:
                    self._print(
                        f"They keep their ports ({', '.join(map(str, sorted(kept)))}); --port is for new services."
                    )
            async with Fleet() as fleet, serve(self._layout, commands):
                tasks = [
                    asyncio.create_task(Controller(runtime.cluster, fleet, reconcile).run()),
                    asyncio.create_task(self._serve(runtime, commands)),
                ]
                stop = asyncio.create_task(self._stop.wait())
                await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
                for task in (*tasks, stop):
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                self._code = next((1 for each in results if isinstance(each, Exception)), self._code)
                for result in results:
                    if isinstance(result, CommandError):
                        self._print(f"error: {result}", "red")
                    elif isinstance(result, Exception):
                        logging.getLogger(__name__).error("the control loop failed", exc_info=result)
                failed = any(isinstance(each, Exception) for each in results)
        finally:
            self._reporter.end_checklist()
            if failed or self._leave:
                await self._detach(runtime)
            else:
                await self._shut_down(runtime)
        return self._code

    async def _serve(self, runtime: Runtime, commands: Commands) -> None:
        """Apply the objects, wait until they are ready, send the prompt, then report changes until cancelled."""
        if self._options.model:
            path = manifests.save(self._objects[0], self._layout)
            self._print(f"Manifest: {path} (edit it, then `{program()} apply{_runtime(self._layout)} -f` it)", "dim")
        for obj in self._objects:
            self._print(f"{named(obj)} {commands.apply(obj)}")
        services = [obj for obj in self._objects if obj["kind"] == KIND]
        if services:
            if await self._until_ready(runtime, Ref.of(services[0])):
                await self._send_first_request(runtime, Ref.of(services[0]))
            elif self._options.ask:
                self._code = 1
                return
        else:
            apply = f"{program()} apply{_runtime(self._layout)} -f MANIFEST"
            self._print(f"The control loop runs. Now, in another terminal: {apply}")
        while True:
            self._report(runtime)
            await self._next_change()

    async def _until_ready(self, runtime: Runtime, ref: Ref) -> bool:
        """Wait until the service is ready; False when it was deleted, or is stalled and ``--ask`` waits for it."""
        explained = False
        service = runtime.store.get(ref)
        if service is None:
            return False
        self._reporter.watch(service)
        while not is_ready(service):
            self._report(runtime)
            if is_stalled(service) and not explained:
                explained = True
                self._reporter.end_checklist()
                self._reporter.explain(service)
                if self._options.ask:
                    return False
                self._print("It is tried again and again; change the manifest and apply it, or stop with Ctrl-C.")
            await self._next_change()
            service = runtime.store.get(ref)
            if service is None:
                return False
        self._report(runtime)
        self._reporter.end_checklist()
        return True

    async def _send_first_request(self, runtime: Runtime, ref: Ref) -> None:
        service = runtime.store.get(ref)
        if service is None:
            return
        url, name = service["status"]["url"], ref.name
        self._print("")
        self._console.print(Text.assemble((f"{name} is ready at ", "bold"), (url, "bold green")), soft_wrap=True)
        if self._options.ask:
            self._print(f"\n> {self._options.ask}", "cyan")
            send = {"embed": embed, "score": rerank}.get(_task(service["spec"]), stream_chat)
            auth = service["spec"].get("router", {}).get("auth") is not None
            figures = await send(url, self._options.ask, self._write, with_key=auth)
            self._write("\n")
            self._print(f"({figures})\n", "dim")
        for line in _hints(url, name, self._layout, service["spec"]):
            self._print(line, "dim")

    def _report(self, runtime: Runtime) -> None:
        for service in runtime.store.find(KIND):
            pods = runtime.store.find("Pod", service["metadata"]["namespace"], {NAME: service["metadata"]["name"]})
            self._reporter.update(service, next(filter(None, (_preparing(pod, self._layout) for pod in pods)), ""))

    async def _next_change(self) -> None:
        """Wait for a change of a service, or a second: containers that prepare the model report in their logs only."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # wait_for of Python 3.11 can lose a cancellation
                await self._changed.wait()
        self._changed.clear()

    async def _shut_down(self, runtime: Runtime) -> None:
        pods = len(runtime.store.find("Pod"))
        if pods:
            self._print(f"Stopping: {pods} pods finish their requests (Ctrl-C again: at once) ...")
        self._stop.set()
        await runtime.delete_everything(self._hurry)
        if pods:
            self._print("Everything has stopped.")

    async def _detach(self, runtime: Runtime) -> None:
        """End the loop alone: what it started goes on serving."""
        pods = len(runtime.store.find("Pod"))
        await runtime.close()
        if pods:
            up = f"{program()} local up{_runtime(self._layout)}"
            self._print(
                f"{pods} pods go on without a control loop: `{up}` takes them over, and Ctrl-C there ends them."
            )

    def _on_stop(self, leave: bool) -> None:
        if self._stop.is_set():
            self._hurry.set()
        else:
            self._leave = leave
        self._stop.set()

    def _on_change(self, obj: Object) -> None:
        if obj["kind"] == KIND:
            self._changed.set()

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _preparing(pod: Object, layout: Layout) -> str:
    """The last log line of the container that downloads the model, while it runs; else empty."""
    for status in pod.get("status", {}).get("initContainerStatuses", []):
        if status["name"] == FETCH and "running" in status["state"]:
            lines = ContainerLogs(layout.pod(pod) / "logs" / FETCH).tail(status["restartCount"]).split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def _statuses(pod: Object) -> list[Object]:
    statuses: list[Object] = pod.get("status", {}).get("containerStatuses", [])
    return statuses


def _runtime(layout: Layout) -> str:
    """The option with which other commands select this runtime."""
    return "" if layout.root.name == "default" else f" --name {layout.root.name}"


def _task(spec: Object) -> str:
    """What the service serves."""
    return str(spec.get("engine", {}).get("task", "generate"))


def _hints(url: str, name: str, layout: Layout, spec: Object) -> list[str]:
    runtime, command = _runtime(layout), program()
    router = spec.get("router", {})
    options = "--cacert CA.crt " if router.get("tls") else ""
    options += '-H "authorization: Bearer $OPENAI_API_KEY" ' if router.get("auth") else ""
    route, body = "chat/completions", '{"messages": [{"role": "user", "content": "What does len do?"}], "stream": true}'
    if _task(spec) == "embed":
        route, body = "embeddings", '{"input": ["What does len do?", "What does sorted do?"]}'
    elif _task(spec) == "score":
        route, body = "rerank", '{"query": "What does len do?", "documents": ["It counts.", "It sorts."]}'
    page = f"Open it:     {url.removesuffix('/v1')}/ui/ in a browser: chat, the service, its traffic"
    return [
        *([page] if router.get("ui", {}).get("enabled", True) else []),
        f"Ask it:      curl {options}{url}/{route} -H 'content-type: application/json' -d '{body}'",
        f"Look at it:  {command} get all{runtime}  |  describe {name}  |  logs {name} -f",
        f"Change it:   {command} scale {name} --replicas 3{runtime}  |  apply -f  |  delete {name}",
        "Stop it:     Ctrl-C",
    ]
