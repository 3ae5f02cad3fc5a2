"""``blade_operator quantize``: its Job makes a checkpoint in a claim, says how far it is, and a service serves it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from blade_operator import main as program
from blade_protocol.labels import PROGRESS
from e2e.cluster.base import Cluster
from e2e.support.images import Images
from e2e.support.load import chat, client
from e2e.support.service import CLAIM, Service

JOB = "demo-w4"
MADE = "made"


def test_a_job_quantises_the_demo_model_and_a_service_serves_it(
    cluster: Cluster, private: Service, images: Images, tmp_path: Path
) -> None:
    folder = tmp_path / MADE
    folder.mkdir()
    folder.chmod(0o777)  # Kubernetes does not change the owner of a node's folder
    cluster.static_volume(private.namespace, MADE, folder, writable=True)
    argv = ["quantize", JOB, "--model", f"pvc://{CLAIM}/model", "--output_dir", f"pvc://{MADE}/{JOB}"]
    argv += ["--bit", "4", "--block_wise_quant", "--block_size", "32", "--report_progress"]
    argv += ["--image", images.engine, "--env", "OMP_NUM_THREADS=1", "--cpu", "100m", "--memory", "2Gi"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert program.main([*argv, "-n", private.namespace]) == 0
    private.kubectl("apply", "-f", "-", input=printed.getvalue())

    wait = ["kubectl", "-n", private.namespace, "wait", "--for=condition=Complete", f"job/{JOB}", "--timeout=300s"]
    done = cluster.run(wait)
    logs = private.kubectl("logs", f"job/{JOB}", check=False)
    assert done.returncode == 0, f"{done.stderr}{logs}"
    said = private.json("get", "job", JOB)["metadata"].get("annotations", {})
    assert said.get(PROGRESS, "").endswith("bits a quantised weight"), f"{said}{logs}"
    assert (folder / JOB / "model.safetensors").is_file()

    private.apply(model={"uri": f"pvc://{MADE}/{JOB}"})
    private.wait_ready()
    with private.reach() as url, client() as http:
        result = chat(http, url, "What does len do?", stream=True)
    assert result.outcome == "ok", result
