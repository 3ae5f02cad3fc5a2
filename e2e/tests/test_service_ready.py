"""From ``kubectl apply`` to a first response: Ready, what ``kubectl get llm`` prints, chat from inside the cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from e2e.cluster.base import Cluster, CommandFailed
from e2e.support.images import Images
from e2e.support.load import chat, client
from e2e.support.prompts import RESPONSES
from e2e.support.restricted import run_in_pod
from e2e.support.service import Service

QUESTION = "What does len do?"

CHAT = """
import json, sys, urllib.request
url, question = sys.argv[1:]
body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
headers = {"content-type": "application/json"}
request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
text = ""
for line in urllib.request.urlopen(request, timeout=60):
    if line.startswith(b"data: {"):
        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
print(text)
"""


CONDITIONS = {
    "Ready": ("True", "Ready"),
    "SpecValid": ("True", "Valid"),
    "ModelCached": ("True", "NoDownload"),
    "PreflightPassed": ("True", "Passed"),
    "ModelFits": ("True", "Measured"),
    "WorkersReady": ("True", "AllReady"),
    "RouterReady": ("True", "AllReady"),
    "Progressing": ("False", "Complete"),
    "Degraded": ("False", "AsExpected"),
    "Reconciling": ("False", "Complete"),
    "Stalled": ("False", "AsExpected"),
}


def test_it_becomes_ready(demo: Service) -> None:
    demo.wait_ready()

    def seen() -> dict[str, tuple[str, str]]:
        return {entry["type"]: (entry["status"], entry["reason"]) for entry in demo.status()["conditions"]}

    demo.until(lambda: seen() == CONDITIONS, "with every condition as it should be", 30)
    status = demo.status()
    assert status["phase"] == "Ready"
    [checked] = status["preflight"]
    assert (checked["pass"], checked["warning"], checked["failed"]) == (3, 0, 0)
    assert status["fit"]["source"] == "measured"  # so the operator reaches the engine, with the service's token


def test_kubectl_get_prints_the_columns(demo: Service) -> None:
    demo.until(lambda: demo.condition("ModelFits").get("reason") == "Measured", "measured")
    header, row = (line.split() for line in demo.kubectl("get", "llm", "demo").splitlines())
    cells = dict(zip(header, row, strict=True))
    assert cells.pop("AGE")
    assert cells == {
        "NAME": "demo",
        "READY": "True",
        "REASON": "Ready",
        "MODEL": "pvc://demo-models/model",
        "DESIRED": "1",
        "READY#": "1",
        "GPUS": "0",
        "URL": f"http://demo-router.{demo.namespace}:8080/v1",
    }
    wide = demo.kubectl("get", "llm", "-o", "wide").splitlines()[1].split()
    assert wide[-1] == demo.status()["revision"]["current"]


def test_transitions_are_recorded_as_events(demo: Service) -> None:
    def reasons() -> set[str]:
        events = demo.json("get", "events", "--field-selector", "involvedObject.kind=LLMService")["items"]
        return {str(event["reason"]) for event in events}

    demo.until(lambda: {"NewRevision", "ScaledUp", "Ready"} <= reasons(), "with its events")


def test_chat_from_a_pod_by_the_url_in_the_status(demo: Service, cluster: Cluster, images: Images) -> None:
    said = run_in_pod(cluster, demo.namespace, "chat", images.operator, CHAT, demo.status()["url"], QUESTION)
    assert said == RESPONSES[QUESTION] + "\n"


def test_chat_with_the_openai_client_streaming_and_not(demo: Service) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    with demo.reach() as url, DefaultHttpxClient(trust_env=False) as http:
        openai = OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, max_retries=0)
        assert [model.id for model in openai.models.list()] == ["demo"]
        response = openai.chat.completions.create(model="demo", messages=messages, temperature=0)
        assert response.choices[0].message.content == RESPONSES[QUESTION]
        assert response.choices[0].finish_reason == "stop"
        parts = list(openai.chat.completions.create(model="demo", messages=messages, temperature=0, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == RESPONSES[QUESTION]
    assert len([part for part in parts if part.choices[0].delta.content]) > 5


def test_the_engine_has_the_chat_template_of_the_service_as_a_file(demo: Service) -> None:
    [pod] = demo.pods("engine")
    [engine] = pod["spec"]["containers"]
    path = engine["args"][engine["args"].index("--chat_template") + 1]
    code = f"import sys; sys.stdout.buffer.write(open({path!r}, 'rb').read())"
    said = demo.kubectl("exec", pod["metadata"]["name"], "-c", "engine", "--", "python3", "-c", code)
    assert said == demo.get()["spec"]["engine"]["chatTemplate"]["inline"]


@pytest.mark.parametrize("stream", [False, True])
def test_every_prompt_has_its_response(demo: Service, stream: bool) -> None:
    with demo.reach() as url, client() as http:
        results = [chat(http, url, question, stream=stream) for question in RESPONSES]
    assert [result for result in results if result.outcome != "ok"] == []
    assert {result.endpoint for result in results} == {pod["metadata"]["name"] for pod in demo.pods("engine")}


def test_the_namespace_is_restricted_and_all_pods_keep_to_it(demo: Service, cluster: Cluster, images: Images) -> None:
    labels = cluster.json("get", "namespace", demo.namespace)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    loose = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "main", "image": images.operator}]},
    }
    with pytest.raises(CommandFailed, match='violates PodSecurity "restricted:latest"'):
        demo.kubectl("create", "-f", "-", input=json.dumps(loose))
    again = ("--overwrite", "--dry-run=server", "pod-security.kubernetes.io/enforce=restricted")
    for namespace in (demo.namespace, "bladellm-system"):
        done = cluster.run(["kubectl", "label", "namespace", namespace, *again])
        assert (done.returncode, done.stderr) == (0, "")  # the server warns of each pod that breaks the standard
