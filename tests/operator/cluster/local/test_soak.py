"""The control loop killed at random moments, programs too: it always converges to exactly what is declared."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from operator_support.local import alive, pid_of
from operator_support.loop import Loop, loop, manifest


def _exact(running: Loop, replicas: int) -> bool:
    """Ready, one process per pod, and no process besides."""
    pods = running.objects("Pod")
    ready = running.service("qwen").get("status", {}).get("readyReplicas")
    if ready != replicas or running.condition("qwen", "RouterReady") != "True" or len(pods) != replicas + 1:
        return False
    pids = {pid_of(pod, pod["spec"]["containers"][0]["name"]) for pod in pods}
    return running.processes() == pids and all(map(alive, pids))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(int(os.environ.get("SOAK_SEEDS", "5"))))
def test_a_loop_killed_anywhere_converges(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with loop(tmp_path) as running:
        running.start()
        running.command("apply", "-f", str(manifest(tmp_path, replicas=1)))
        replicas = 1
        for _ in range(12):
            time.sleep(rng.uniform(0, 2.5))
            match rng.choice(("kill loop", "kill loop", "kill program", "scale", "change")):
                case "kill loop":
                    running.kill()
                    running.start()
                case "kill program":
                    for pid in rng.sample(sorted(running.processes()), k=min(1, len(running.processes()))):
                        os.kill(pid, signal.SIGKILL)
                case "scale":
                    replicas = rng.randint(0, 3)
                    running.command("scale", "qwen", "--replicas", str(replicas))
                case "change":
                    seqs = rng.randint(1, 99)
                    path = manifest(tmp_path, replicas=replicas, engine={"maxNumSeqs": seqs})
                    running.command("apply", "-f", str(path))
        running.until(lambda: _exact(running, replicas), 120)
        assert running.interrupt() == 0
        assert running.processes() == set()
        assert running.objects("*") == []
