"""Adapters on two of three engines: the set is changed and an engine killed while clients use them. No request fails,
every response is the merged model's, and the status is true at each second."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

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


def replaced(url: str, said: Said) -> bool:
    """Whether a response of ``mate`` is one of its former weights."""
    with client() as http:
        for prompt in RESPONSES:
            for _ in range(3):
                result = chat(http, url, prompt, stream=False, model="mate", expected=(said["pirate"][prompt],))
                if result.outcome != "ok":
                    return True
    return False
