"""What a test can do with a cluster, whichever kind it is."""

import contextlib
import json
import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from e2e.cluster.volumes import static_volume


class CommandFailed(Exception):
    """A command against the cluster ended with an error; the message holds what it printed."""


class Unsupported(Exception):
    """This kind of cluster cannot do that."""


class Cluster(ABC):
    """A running Kubernetes with its kubectl and helm, and a way into its network."""

    kubeconfig: Path
    programs: Path | None = None
    """Folder with its kubectl and helm; None: those on the PATH."""
    enter: tuple[str, ...] = ()
    """Arguments to put before a command that must reach pods and Services."""
    audit_log: Path | None = None
    """The API server's audit log (Metadata level), where it can be read."""

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with the cluster's KUBECONFIG and programs."""
        path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        path = f"{self.programs}{os.pathsep}{path}" if self.programs else path
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def run(
        self, argv: Sequence[str], input: str | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """A command with KUBECONFIG set, inside the cluster's network; never raises on its exit status."""
        return subprocess.run(
            [*self.enter, *argv],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=timeout,
        )

    def popen(self, argv: Sequence[str], stdout: IO[Any] | int | None = subprocess.PIPE) -> subprocess.Popen[str]:
        """The same in the background (stdout and stderr in one stream); end it yourself."""
        return subprocess.Popen(
            [*self.enter, *argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        """What kubectl printed; raises CommandFailed, or with ``check=False`` returns its errors behind its output."""
        return self._output(["kubectl", *arguments], input, check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        """What helm printed; errors as for `kubectl`."""
        return self._output(["helm", *arguments], None, check)

    def _output(self, argv: list[str], input: str | None, check: bool) -> str:
        done = self.run(argv, input)
        if not check:
            return done.stdout + done.stderr
        if done.returncode:
            raise CommandFailed(f"{' '.join(argv)} exited with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        """``kubectl … -o json``, parsed."""
        value: dict[str, Any] = json.loads(self.kubectl(*arguments, "-o", "json"))
        return value

    def apply(self, *objects: dict[str, Any], namespace: str | None = None) -> None:
        """Server-side apply of whole objects; raises CommandFailed with the server's words."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        where = ("--namespace", namespace) if namespace else ()
        self.kubectl("apply", "--server-side", "--force-conflicts", *where, "-f", "-", input=document)

    def static_volume(
        self, namespace: str, claim: str, folder: Path, size: str = "10Gi", writable: bool = False
    ) -> None:
        """A claim bound to a folder of the node (see `volumes.static_volume`)."""
        self.apply(*static_volume(namespace, claim, folder, size, with_claim=True, writable=writable))

    def volume_for(self, namespace: str, claim: str, folder: Path, size: str = "100Gi") -> None:
        """Only the volume, reserved for a claim that somebody else (the operator, say) is going to make.

        ``folder`` becomes writable for everybody: Kubernetes does not change the owner of a node's folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        self.apply(*static_volume(namespace, claim, folder, size, with_claim=False, writable=True))

    @contextlib.contextmanager
    def reach(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """A URL for a Service's port, good inside ``enter``: here a port-forward; an own node has something better."""
        forward = self.popen(["kubectl", "-n", namespace, "port-forward", f"service/{service}", f":{port}"])
        try:
            assert forward.stdout is not None
            line = forward.stdout.readline()
            match = re.search(r"127\.0\.0\.1:(\d+)", line)
            if match is None:
                raise CommandFailed(f"kubectl port-forward service/{service}: {line.strip()}")
            yield f"http://127.0.0.1:{match[1]}"
        finally:
            forward.kill()
            forward.wait()

    @abstractmethod
    def load_images(self, archives: Sequence[Path]) -> None:
        """Put the images of docker archives on the node."""

    @abstractmethod
    def down(self) -> None:
        """Remove the cluster and everything of it."""
