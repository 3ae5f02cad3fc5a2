"""An engine on two machines from `blade_operator local up` to a client: the manifest of examples/, beside the same
model on one; and a machine that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from operator_support.local import pid_of
from operator_support.loop import Loop, loop

from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.model.objects import Object
from blade_protocol.labels import NAME, REPLICA_GROUP

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUEST: dict[str, Any] = {"model": "demo", "prompt": "What does len do?", "temperature": 0.8, "seed": 11}


def manifests() -> list[dict[str, Any]]:
    """The example and the same on one machine, both in fp32, where tokens are the same."""
    made = []
    for name in ("one", "two"):
        text = (EXAMPLES / "multi-node.yaml").read_text()
        manifest = yaml.safe_load(text.replace("file:///opt/bladellm/examples/", f"file://{EXAMPLES}/"))
        manifest["metadata"]["name"] = name
        manifest["spec"]["engine"]["dtype"] = "float32"
        if name == "one":
            del manifest["spec"]["engine"]["gpus"]
        made.append(manifest)
    return made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "services.yaml").write_text(yaml.safe_dump_all(manifests()))
    with loop(folder, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        each.start("-f", str(folder / "services.yaml"))
        each.until(lambda: each.ready("one") and each.ready("two"), 200)
        yield each


def members(loop: Loop) -> list[Object]:
    """The pods of the engine on two machines, by machine, without those that leave."""
    pods = (pod for pod in loop.objects("Pod") if REPLICA_GROUP in pod["metadata"]["labels"])
    mine = (pod for pod in pods if pod["metadata"]["labels"][NAME] == "two" and not is_terminating(pod))
    return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))


def answer(loop: Loop, name: str) -> str:
    client = OpenAI(base_url=loop.service(name)["status"]["url"], api_key="none", max_retries=0, timeout=120)
    text: str = client.completions.create(**REQUEST, max_tokens=48).choices[0].text
    return text


def test_two_machines_answer_as_one(running: Loop) -> None:
    assert len(members(running)) == 2
    assert running.service("two")["status"]["fit"]["ranks"] == 2
    assert answer(running, "two") == answer(running, "one")


def test_an_engine_of_which_a_machine_was_killed_is_replaced_and_answers_again(running: Loop) -> None:
    before = {pod["metadata"]["uid"] for pod in members(running)}
    os.kill(pid_of(members(running)[1]), signal.SIGKILL)

    def replaced() -> bool:
        pods = members(running)
        new = not before & {pod["metadata"]["uid"] for pod in pods}
        return new and len(pods) == 2 and all(map(is_ready, pods)) and running.ready("two")

    running.until(replaced, 200)
    [event] = [each for each in running.objects("Event") if each["reason"] == "GroupReplaced"]
    assert "; all pods of the engine are replaced" in event["message"]
    assert answer(running, "two") == answer(running, "one")
