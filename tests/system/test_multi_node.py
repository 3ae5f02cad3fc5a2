"""An engine on two machines from `blade_operator local up` to a client: the manifest of examples/ with a LoRA adapter,
beside the same model on one; and a machine that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import InternalServerError, OpenAI
from operator_support.local import pid_of
from operator_support.loop import Loop, loop

from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.model.objects import Object
from blade_protocol.labels import NAME, REPLICA_GROUP

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUEST: dict[str, Any] = {"prompt": "What does len do?", "temperature": 0.8, "seed": 11}


def manifests() -> list[dict[str, Any]]:
    """The example and the same on one machine, both in fp32, where tokens are the same, and both with an adapter."""
    made = []
    for name in ("one", "two"):
        text = (EXAMPLES / "multi-node.yaml").read_text()
        manifest = yaml.safe_load(text.replace("file:///opt/bladellm/examples/", f"file://{EXAMPLES}/"))
        manifest["metadata"]["name"] = name
        manifest["spec"]["engine"] |= {"dtype": "float32", "lora": {"maxGPU": 2}}
        manifest["spec"]["adapters"] = [{"name": "pirate", "uri": f"file://{EXAMPLES}/demo_model/adapter"}]
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
        each.until(lambda: has_adapter(each, "one") and has_adapter(each, "two"), 60)
        yield each


def has_adapter(loop: Loop, name: str) -> bool:
    return loop.condition(name, "AdaptersReady") == "True"


def members(loop: Loop) -> list[Object]:
    """The pods of the engine on two machines, by machine, without those that leave."""
    pods = (pod for pod in loop.objects("Pod") if REPLICA_GROUP in pod["metadata"]["labels"])
    mine = (pod for pod in pods if pod["metadata"]["labels"][NAME] == "two" and not is_terminating(pod))
    return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))


def answer(loop: Loop, name: str, model: str = "demo") -> str:
    client = OpenAI(base_url=loop.service(name)["status"]["url"], api_key="none", max_retries=0, timeout=120)
    text: str = client.completions.create(**REQUEST, model=model, max_tokens=48).choices[0].text
    return text


def test_two_machines_answer_as_one(running: Loop) -> None:
    assert len(members(running)) == 2
    assert running.service("two")["status"]["fit"]["ranks"] == 2
    base, adapter = answer(running, "one"), answer(running, "one", "pirate")
    assert base != adapter
    assert answer(running, "two") == base
    assert answer(running, "two", "pirate") == adapter


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
    expected = answer(running, "one", "pirate")
    found: list[str] = []

    def answered() -> bool:
        """False until the new engine has been given the adapter."""
        with contextlib.suppress(InternalServerError):
            found.append(answer(running, "two", "pirate"))
        return bool(found)

    running.until(answered, 60)
    assert found == [expected]
