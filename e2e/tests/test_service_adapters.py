"""Adapters on two of three engines: the set is changed and an engine killed while clients use them. No request fails,
every response is the merged model's, and the status is true at each second."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from blade_protocol.labels import ADAPTER_KIND, API_VERSION
from e2e.cluster.base import Cluster
from e2e.support.adapters import StatusWatch, engine_addresses, make_adapters
from e2e.support.load import Load, chat, client
from e2e.support.node import kill_container
from e2e.support.prompts import RESPONSES
from e2e.support.service import CLAIM, Service, names

Said = Mapping[str, Mapping[str, str]]


def declared(**folders: str) -> list[dict[str, Any]]:
    """Adapters by name, each in a folder of the claim, on two engines."""
    return [{"name": name, "uri": f"pvc://{CLAIM}/{path}", "replicas": 2} for name, path in folders.items()]


def right(said: Said, **folders: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """The right responses of the base model and of adapters by name, with the weights of any of those folders."""
    found = {"": {prompt: [response] for prompt, response in RESPONSES.items()}}
    for name, some in folders.items():
        found[name] = {prompt: [said[each][prompt] for each in some] for prompt in RESPONSES}
    return found


def loaded(service: Service) -> dict[str, int]:
    return {entry["name"]: entry["loaded"] for entry in service.status().get("adapters", ())}


def change(service: Service, adapters: list[dict[str, Any]]) -> None:
    """``kubectl apply`` of the same service with another set."""
    engine = {"lora": {"maxGPU": 4, "maxCPU": 8}}
    service.apply(replicas=3, model={"uri": f"pvc://{CLAIM}/model"}, engine=engine, adapters=adapters)


def test_a_set_of_adapters_under_load(cluster: Cluster, operator: str, namespace: str, tmp_path: Path) -> None:
    said = make_adapters(tmp_path / "models")
    assert len({tuple(each.values()) for each in (RESPONSES, *said.values())}) == 1 + len(said), "all differ"
    cluster.static_volume(namespace, CLAIM, tmp_path / "models")
    service = Service(cluster, namespace)
    change(service, declared(pirate="pirate", polite="polite", mate="captain", butler="butler"))
    service.wait_until_converged(3)
    all_loaded = dict.fromkeys(("pirate", "polite", "mate", "butler"), 2)
    service.until(lambda: loaded(service) == all_loaded, "with its adapters on two engines each")
    service.until(lambda: service.condition("AdaptersReady")["status"] == "True", "with its adapters ready")
    engines = names(service.pods("engine"))
    everything = right(said, pirate=("pirate",), polite=("polite",), mate=("captain",), butler=("butler",))

    with StatusWatch(service, engine_addresses(service)) as watch, service.reach() as url, Load(url) as load:
        load.models = everything
        load.more(30)
        assert {result.model for result in load.good} == set(everything)

        # One goes, one comes, and one gets other weights; who uses those two sees either, never an error.
        load.models = right(said, polite=("polite",), butler=("butler",), mate=("captain", "pirate"))
        load.more(6)  # nobody uses the one that goes any more
        change(service, declared(polite="polite", mate="pirate", butler="butler", shy="shy"))
        service.until(lambda: loaded(service) == {"polite": 2, "mate": 2, "butler": 2, "shy": 2}, "changed")
        service.until(lambda: not replaced(url, said), "with the new weights everywhere")
        load.models = right(said, polite=("polite",), mate=("pirate",), butler=("butler",), shy=("shy",))
        load.more(30)
        with client() as http:
            gone = chat(http, url, next(iter(RESPONSES)), stream=False, model="pirate")
        assert gone.detail.startswith("404"), gone

        [having] = [entry["pods"] for entry in service.status()["adapters"] if entry["name"] == "polite"]
        target = next(pod for pod in service.pods("engine") if pod["metadata"]["name"] == having[0])
        kill_container(cluster, target, "engine")
        load.more(10)
        service.until(lambda: service.status()["readyReplicas"] == 2, "seen with two engines")
        service.wait_until_converged(3)
        service.until(lambda: set(loaded(service).values()) == {2}, "with its adapters on two engines each again")
        load.more(30)
        assert service.condition("AdaptersReady")["status"] == "True"
        assert names(service.pods("engine")) == engines, "no pod was replaced"
    assert load.bad == []
    assert watch.lies() == []
    first, *_, last = watch.claimed_adapters()
    assert "pirate" in first - last, "watched from the first set on"
    assert "shy" in last - first, "watched to the last set"


def test_a_team_adds_its_adapter_without_touching_the_service(
    cluster: Cluster, operator: str, namespace: str, tmp_path: Path
) -> None:
    """One who may change LoRAAdapters alone: with them answers come and go, and what is wrong harms nobody."""
    said = make_adapters(tmp_path / "models")
    cluster.static_volume(namespace, CLAIM, tmp_path / "models")
    service = Service(cluster, namespace)
    engine = {"lora": {"maxGPU": 4, "maxCPU": 8}}
    selector = {"matchLabels": {"for": "demo"}}
    service.apply(replicas=2, model={"uri": f"pvc://{CLAIM}/model"}, engine=engine, adapterSelector=selector)
    service.kubectl("create", "role", "adapters", "--verb=*", "--resource=loraadapters.serving.bladellm.io")
    service.kubectl("create", "rolebinding", "team", "--role=adapters", "--user=team")
    service.wait_until_converged(2)
    engines, generation = names(service.pods("engine")), service.get()["metadata"]["generation"]

    def as_team(verb: str, name: str, folder: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        metadata = {"name": name, "labels": {"for": "demo"} if labels is None else labels}
        spec = {"uri": f"pvc://{CLAIM}/{folder}", **spec}
        obj = {"apiVersion": API_VERSION, "kind": ADAPTER_KIND, "metadata": metadata, "spec": spec}
        return service.kubectl("--as=team", verb, "-f", "-", input=json.dumps(obj), check=False)

    def adapter(name: str) -> dict[str, Any]:
        return dict(service.json("get", "lora", name).get("status") or {})

    service.until(lambda: "created" in as_team("apply", "pirate", "pirate"), "with an adapter of the team's", 30)
    as_team("apply", "shy", "shy", replicas=1)
    as_team("apply", "other", "polite", labels={})
    as_team("apply", "wrong", "nowhere")
    service.kubectl("wait", "--for=condition=Ready", "lora/pirate", "lora/shy", "--timeout=90s")
    assert (adapter("pirate")["engines"], adapter("shy")["engines"]) == ("2/2", "1/1")
    assert adapter("other") == {}, "nobody selects it"
    service.until(lambda: "does not exist" in json.dumps(adapter("wrong")), "with the engine's words in its status")
    assert loaded(service) == {"pirate": 2, "shy": 1, "wrong": 0}
    printed = [line.split()[:4] for line in service.kubectl("get", "lora").splitlines()]
    assert ["pirate", "True", "Loaded", "2/2"] in printed
    with service.reach() as url, Load(url) as load:
        for name in ("pirate", "shy"):
            service.until(partial(answers, url, said, name), f"answering as {name}")
        load.models = right(said, pirate=("pirate",), shy=("shy",))
        load.more(20)
        load.models = right(said, pirate=("pirate",))
        load.more(6)
        service.kubectl("--as=team", "delete", "lora", "shy", "wrong")
        service.until(lambda: loaded(service) == {"pirate": 2}, "without those that were deleted")
        load.more(10)
    assert load.bad == []
    assert service.condition("AdaptersReady")["status"] == "True"
    assert (names(service.pods("engine")), service.get()["metadata"]["generation"]) == (engines, generation)
    refused = service.kubectl("--as=team", "patch", "llm", "demo", "--type=merge", "-p", "{}", check=False)
    assert "forbidden" in refused, "it may not change the service"
    service.kubectl("delete", "llm", "demo")
    service.until(lambda: adapter("pirate") == {}, "gone without a trace in the adapter's status")


def answers(url: str, said: Said, model: str) -> bool:
    """Whether a request for ``model`` gets its response."""
    prompt = next(iter(RESPONSES))
    with client() as http:
        return chat(http, url, prompt, stream=False, model=model, expected=(said[model][prompt],)).outcome == "ok"


def replaced(url: str, said: Said) -> bool:
    """Whether a response of ``mate`` is one of its former weights."""
    with client() as http:
        for prompt in RESPONSES:
            for _ in range(3):
                result = chat(http, url, prompt, stream=False, model="mate", expected=(said["pirate"][prompt],))
                if result.outcome != "ok":
                    return True
    return False
