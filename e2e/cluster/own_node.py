"""A complete Kubernetes with one real node, made of plain processes in a network namespace of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import control_plane, dns, kwok, node
from e2e.cluster.assets import Assets
from e2e.cluster.base import Cluster
from e2e.cluster.cgroups import make_cgroups
from e2e.cluster.layout import NODE, Layout
from e2e.cluster.network import make_network
from e2e.cluster.pki import make_pki
from e2e.cluster.process import Processes
from e2e.cluster.requirements import check_requirements
from e2e.cluster.small_images import write_archive
from e2e.cluster.teardown import leftovers, remove


class OwnNode(Cluster):
    """Cluster ``name`` with the programs of ``assets``; `up` starts it, another process finds it again by its name."""

    def __init__(self, name: str, assets: Assets) -> None:
        self.layout = Layout(name)
        self.assets = assets
        self.programs = assets.bin
        self.kubeconfig = self.layout.kubeconfig()
        self.enter = self.layout.enter
        self.audit_log = self.layout.audit_log
        self.processes = Processes(self.layout.processes, self.layout.logs)

    def is_up(self) -> bool:
        """It came up completely and none of its processes died."""
        names = self.processes.names()
        return self.layout.summary.exists() and all(self.processes.pid(name) is not None for name in names)

    def up(self, *, gpus: int = 8, kwok_nodes: int = 0, node_grace: int = 20, crds: Sequence[Path] = ()) -> None:
        """From nothing to a Ready node with DNS; what a crashed run left is removed first.

        ``gpus``: fake ones, of each vendor; ``node_grace``: seconds until a silent node is NotReady; ``crds``: files
        applied before the garbage collector starts, which otherwise needs up to 30 s to learn a new kind. On any error,
        and on Ctrl-C, everything is taken down again.
        Raises MissingRequirement, AssetError, ProcessDied, NotReady, LeftBehind.
        """
        check_requirements()
        begin = time.monotonic()

        def done(what: str) -> None:
            print(f"  {what:<48} {time.monotonic() - begin:5.1f} s", flush=True)

        if leftovers(self.layout):
            remove(self.layout)
            done("what an earlier run left is removed")
        try:
            with ThreadPoolExecutor() as pool:
                pki = pool.submit(self._prepare)
                self.assets.unpack()
                done("programs unpacked")
                pki.result()
                done("keys, network, cgroups made")
                self._start("etcd", control_plane.etcd(self.layout))
                self._start("kube-apiserver", control_plane.apiserver(self.layout))
                runtime = pool.submit(self._start_containerd)
                self.processes.wait("kube-apiserver", self._api_ready)
                done("API server ready")
                if crds:
                    self.kubectl("apply", "--server-side", *(part for path in crds for part in ("-f", str(path))))
                runtime.result()
            self._start("kube-controller-manager", control_plane.controller_manager(self.layout, node_grace))
            self._start("kubelet", node.kubelet(self.layout))
            self._start("kube-scheduler", control_plane.scheduler(self.layout))
            self._start("coredns", dns.coredns(self.layout))
            self._start("kube-proxy", control_plane.kube_proxy(self.layout, NODE))
            self.processes.wait("node", self._node_ready)
            done("node ready")
            self._add_gpus(gpus)
            self.add_kwok_nodes(kwok_nodes)
            self.processes.wait(
                "service account", lambda: self.run(["kubectl", "get", "sa", "default"]).returncode == 0
            )
            self.processes.wait("CoreDNS", lambda: dns.is_ready(self.layout))
            done("DNS and service accounts ready")
        except BaseException as error:
            if isinstance(error, Exception):
                self._save_logs()
            self.down()
            raise
        self.layout.summary.write_text(json.dumps({"name": self.layout.name, "up": time.time()}))

    def down(self) -> None:
        """Remove it, in whatever state it is; raises LeftBehind."""
        remove(self.layout)
        self.processes.reap()

    def load_images(self, archives: Sequence[Path]) -> None:
        """Imports each archive once, however often it is requested; raises RuntimeError with ctr's words."""
        record = self.layout.folder / "loaded-images"
        loaded = set(record.read_text().splitlines()) if record.exists() else set()
        for archive in archives:
            stat = archive.stat()
            identity = f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}"
            if identity in loaded:
                continue
            ctr = [str(self.programs / "ctr") if self.programs else "ctr", "-a", str(self.layout.containerd_socket)]
            done = subprocess.run(
                [*ctr, "-n", "k8s.io", "images", "import", str(archive)], capture_output=True, text=True, timeout=600
            )
            if done.returncode:
                raise RuntimeError(f"importing {archive} failed: {done.stderr.strip()}")
            with record.open("a") as out:
                out.write(f"{identity}\n")

    @contextlib.contextmanager
    def frozen(self, process: str) -> Iterator[None]:
        """Stop one process of the cluster (``kubelet``, say) for a while, as if it hung; KeyError if there is none."""
        pid = self.processes.pid(process)
        if pid is None:
            raise KeyError(f"{process} does not run; these do: {', '.join(self.processes.names())}")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def reach(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """The Service's own address: its clients run inside the network namespace (``enter``)."""
        address = self.kubectl("-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
        if address == "None":  # a headless one has only its pods
            with super().reach(namespace, service, port) as url:
                yield url
            return
        yield f"http://{address}:{port}"

    def add_kwok_nodes(self, count: int) -> None:
        """Fake nodes kwok-0 … kwok-(count-1), kept Ready by KWOK, which is started if it does not run yet."""
        if not count:
            return
        if self.processes.pid("kwok") is None:
            self.assets.unpack("kwok")
            self._start("kwok", kwok.kwok(self.layout))
        self.apply(*kwok.nodes(count))
        fake = ["kubectl", "get", "nodes", "-l", "type=kwok", "-o"]
        ready = 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{" "}{end}'
        self.processes.wait("KWOK", lambda: self.run([*fake, ready]).stdout.split().count("True") >= count)

    def _prepare(self) -> None:
        make_pki(self.layout)
        make_network(self.layout)
        make_cgroups(self.layout)

    def _start(self, name: str, argv: Sequence[str]) -> None:
        # Not this process's environment: a proxy or a cluster set there is none of theirs.
        path = f"{self.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.processes.start(
            name, [*self.enter, *argv], {"PATH": path, "HOME": str(self.layout.folder), "LANG": "C.UTF-8"}
        )

    def _start_containerd(self) -> None:
        self._start("containerd", node.containerd(self.layout))
        small = self.layout.folder / "small-images.tar"
        write_archive(small)
        ctr = [f"{self.programs}/ctr", "-a", str(self.layout.containerd_socket), "version"]
        self.processes.wait("containerd", lambda: subprocess.run(ctr, capture_output=True).returncode == 0)
        self.load_images([small])
        small.unlink()

    def _api_ready(self) -> bool:
        return self.run(["kubectl", "get", "--raw", "/readyz"]).stdout == "ok"

    def _node_ready(self) -> bool:
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self.run(["kubectl", "get", "node", NODE, "-o", ready]).stdout == "True"

    def _add_gpus(self, count: int) -> None:
        capacity = {"nvidia.com/gpu": str(count), "amd.com/gpu": str(count)}
        patch = json.dumps({"status": {"capacity": capacity}})
        self.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)

    def _save_logs(self) -> None:
        """What the processes said survives the clean-up after a failed start."""
        if self.layout.logs.exists():
            folder = tempfile.mkdtemp(prefix=f"{self.layout.network}-logs-")
            shutil.copytree(self.layout.logs, folder, dirs_exist_ok=True)
            print(f"  it did not come up; the logs are in {folder}", flush=True)
