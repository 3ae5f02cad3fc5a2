"""A cluster leaves nothing behind, however it ended, and does not disturb the one beside it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster, OwnNode, find
from e2e.cluster.small_images import SHELL_IMAGE
from e2e.cluster.teardown import leftovers
from e2e.support.waiting import until

COMMAND = [sys.executable, "-m", "e2e.cluster"]


@pytest.fixture
def other(cluster: Cluster) -> Iterator[OwnNode]:
    """A second cluster's name, free before and after."""
    if not isinstance(cluster, OwnNode):
        pytest.skip("only the own node can be there twice")
    second = find(f"second-{os.getpid()}")
    assert isinstance(second, OwnNode)
    assert leftovers(second.layout) == []
    yield second
    second.down()


def start(cluster: OwnNode) -> subprocess.Popen[bytes]:
    """Bring it up as from a terminal: where these tests themselves run in the background, SIGINT is ignored."""
    return subprocess.Popen(
        [*COMMAND, "up", "--name", cluster.layout.name],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_cluster_beside_another_comes_up_after_a_crash_and_leaves_nothing(cluster: Cluster, other: OwnNode) -> None:
    up = start(other)
    until(lambda: other.processes.pid("kube-apiserver"), 60, "the start is half done")
    up.send_signal(signal.SIGKILL)
    up.wait()
    assert not other.is_up()
    assert leftovers(other.layout)

    assert start(other).wait(timeout=120) == 0
    other.kubectl("run", "still-here", f"--image={SHELL_IMAGE}", "--", "sleep", "600")
    other.kubectl("wait", "--for=condition=Ready", "pod/still-here", "--timeout=60s")
    # The parts that clean up after pods are gone before the pod is.
    for part in ("containerd", "kubelet"):
        pid = other.processes.pid(part)
        assert pid
        os.kill(pid, signal.SIGKILL)
    until(lambda: not other.is_up(), 10, "the dead are noticed")

    subprocess.run([*COMMAND, "down", "--name", other.layout.name], check=True)
    assert leftovers(other.layout) == []
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"
    assert isinstance(cluster, OwnNode)
    assert cluster.is_up()


def test_ctrl_c_while_it_comes_up_leaves_nothing(other: OwnNode) -> None:
    up = start(other)
    until(lambda: other.processes.pid("kube-apiserver"), 60, "the start is half done")
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=60) == 130
    assert leftovers(other.layout) == []


def test_down_without_a_cluster_is_no_error(other: OwnNode) -> None:
    other.down()
