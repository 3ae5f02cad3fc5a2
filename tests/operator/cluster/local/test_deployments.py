"""Deployments, Services and endpoints of the local runtime: replicas, deletion order, rolling updates, draining."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest
from operator_support.local import about, free_port, local, pid_of, port_of, until
from operator_support.objects import container, deployment, router, service

from blade_operator.cluster.local import ports
from blade_operator.cluster.local.errors import PortInUse
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import DELETION_COST


def _files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def _scaled(replicas: int, *args: str) -> Object:
    return deployment(*args, replicas=replicas)


async def test_scaling_up_keeps_what_runs_and_down_takes_the_cheapest_pod(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(_scaled(1))
        (first,) = await runtime.ready_pods(1)
        await runtime.apply(_scaled(3))
        pods = await runtime.ready_pods(3)
        assert pid_of(first) in map(pid_of, pods)
        cheap = pods[1]
        runtime.store.update(Ref.of(cheap), lambda pod: pod["metadata"].update(annotations={DELETION_COST: "-5"}))
        await runtime.apply(_scaled(2))
        left = await runtime.ready_pods(2)
        assert {pod["metadata"]["name"] for pod in pods} - {pod["metadata"]["name"] for pod in left} == {
            cheap["metadata"]["name"]
        }


async def test_an_unready_pod_is_deleted_first_whatever_its_deletion_cost(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(_scaled(2, "--steer", str(tmp_path)))
        pods = await runtime.ready_pods(2)
        (tmp_path / "unready").touch()
        await until(lambda: not runtime.ready())
        dear = pods[0]["metadata"]["name"]
        (tmp_path / "unready").unlink()
        await runtime.ready_pods(2)
        sick = next(pod for pod in runtime.pods() if pod["metadata"]["name"] == dear)
        status = sick["status"]
        for condition in status["conditions"]:
            condition["status"] = "False"
        runtime.store.update(Ref.of(sick), lambda pod: pod["metadata"].update(annotations={DELETION_COST: "100"}))
        runtime.store.write_status(Ref.of(sick), status)
        await runtime.apply(_scaled(1, "--steer", str(tmp_path)))
        (left,) = await runtime.ready_pods(1)
        assert left["metadata"]["name"] != dear


async def test_a_deleted_pod_is_replaced(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(_scaled(1))
        (pod,) = await runtime.ready_pods(1)
        await runtime.runtime.cluster.delete(Ref.of(pod))
        await until(lambda: runtime.ready() and runtime.ready()[0]["metadata"]["uid"] != pod["metadata"]["uid"])


async def test_a_terminating_pod_is_marked_draining_before_its_sigterm_and_stays_listed_to_its_end(
    tmp_path: Path,
) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(service(), _scaled(2, "--steer", str(tmp_path), "--drain", "0.5"))
        await runtime.ready_pods(2)
        await until(lambda: len(runtime.endpoints()) == 2)
        await runtime.apply(_scaled(1, "--steer", str(tmp_path), "--drain", "0.5"))
        await until(lambda: [e for e in runtime.endpoints() if e.get("draining")])
        assert len(runtime.endpoints()) == 2
        await runtime.ready_pods(1)
        (seen,) = _files(tmp_path, "at-sigterm-*")
        assert sorted(each.get("draining", False) for each in json.loads(seen.read_text())["endpoints"]) == [
            False,
            True,
        ]
        await until(lambda: len(runtime.endpoints()) == 1)


async def test_endpoints_carry_what_a_router_needs(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(service(), _scaled(1))
        (pod,) = await runtime.ready_pods(1)
        (endpoint,) = await until(runtime.endpoints)
        assert endpoint == {
            "name": pod["metadata"]["name"],
            "url": f"http://127.0.0.1:{port_of(pod)}",
            "internal_url": f"http://127.0.0.1:{port_of(pod, 'internal')}",
            "revision": "aaa",
        }


def _host_port(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["ports"][0]["hostPort"])


async def _who(port: int) -> int:
    """The process that responds on a port."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return int((await client.get(f"http://127.0.0.1:{port}/about")).json()["pid"])


async def test_the_router_listens_on_the_requested_port_and_keeps_it_when_it_changes(tmp_path: Path) -> None:
    port = free_port()
    async with local(tmp_path, port) as runtime:
        await runtime.apply(service("router"), router())
        (pod,) = await runtime.ready_pods(1)
        assert _host_port(pod) == port
        assert await _who(port) == pid_of(pod, "router")
        shown = runtime.get("Service", "qwen-router")["status"]["loadBalancer"]["ingress"]
        assert shown == [{"ip": "127.0.0.1", "ports": [{"port": port, "protocol": "TCP"}]}]
        await runtime.apply(router("--version=2"))
        (after,) = await runtime.ready_pods(1)
        await until(lambda: pod["metadata"]["uid"] not in [p["metadata"]["uid"] for p in runtime.pods()])
        (after,) = await runtime.ready_pods(1)
        assert _host_port(after) == port
        assert "--version=2" in (await about(after))["argv"]
        assert await _who(port) == pid_of(after, "router")


async def test_a_changed_router_is_ready_before_the_old_one_terminates(tmp_path: Path) -> None:
    async with local(tmp_path, free_port()) as runtime:
        await runtime.apply(service("router"), router())
        (old,) = await runtime.ready_pods(1)
        await runtime.apply(router("--steer", str(tmp_path)))
        (tmp_path / "unready").touch()
        await until(lambda: len(runtime.pods()) == 2)
        await asyncio.sleep(0.5)
        assert [pod["metadata"]["name"] for pod in runtime.ready()] == [old["metadata"]["name"]]
        shown = runtime.get("Deployment", "qwen-router")["status"]
        assert (shown["replicas"], shown["updatedReplicas"], shown["readyReplicas"]) == (2, 1, 1)
        await runtime.apply(router("--version=3"))  # what never got ready goes at once, and the next takes its place
        await until(lambda: old["metadata"]["uid"] not in [pod["metadata"]["uid"] for pod in runtime.pods()])
        (new,) = await runtime.ready_pods(1)
        assert "--version=3" in (await about(new))["argv"]


async def test_routers_share_the_port_of_their_service(tmp_path: Path) -> None:
    port = free_port()
    async with local(tmp_path, port) as runtime:
        both = router()
        both["spec"]["replicas"] = 2
        await runtime.apply(service("router"), both)
        pods = await runtime.ready_pods(2)
        responded: set[int] = set()
        async with asyncio.timeout(20):
            while responded != {pid_of(pod, "router") for pod in pods}:
                responded |= {await _who(port)}
        os.kill(pid_of(pods[0], "router"), signal.SIGKILL)
        for _ in range(10):
            await _who(port)


async def test_a_router_waits_for_a_port_that_another_program_took_and_names_it(tmp_path: Path) -> None:
    port = free_port()
    async with local(tmp_path, port) as runtime:
        await runtime.apply(service("router"))
        await until(lambda: runtime.get("Service", "qwen-router").get("status"))
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # even one that would share it
            taken.bind(("127.0.0.1", port))
            taken.listen()
            await runtime.apply(router())
            (message,) = await until(lambda: runtime.events("Failed"))
            assert f"port {port} is in use by" in message
            assert f"(pid {os.getpid()})" in message
        await runtime.ready_pods(1)


async def test_a_second_service_gets_the_next_free_port(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        other = service("router")
        other["metadata"]["name"] = "zephyr-router"
        await runtime.apply(service("router"), other)

        def ports() -> list[int]:
            found = [runtime.get("Service", name).get("status", {}) for name in ("qwen-router", "zephyr-router")]
            return [each["loadBalancer"]["ingress"][0]["ports"][0]["port"] for each in found if each]

        first, second = await until(lambda: ports() if len(ports()) == 2 else None)
        assert second > first


def test_a_port_in_use_is_refused_before_anything_starts_and_its_holder_named(tmp_path: Path) -> None:
    from blade_operator.cluster.local.layout import Layout
    from blade_operator.cluster.local.runtime import Runtime

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} is in use by .+ \(pid \d+\).*--port"):
            Runtime(Layout(tmp_path), port)
    Runtime(Layout(tmp_path), port)._lock.release()  # the refusal left the folder free


async def test_children_go_with_their_owner(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        owner = runtime.store.create(
            {"kind": "LLMService", "metadata": {"name": "qwen", "namespace": "default"}, "spec": {}}
        )
        owned = _scaled(1)
        owned["metadata"]["ownerReferences"] = [{"kind": "LLMService", "name": "qwen", "uid": owner["metadata"]["uid"]}]
        await runtime.apply(owned)
        await runtime.ready_pods(1)
        runtime.store.remove(Ref.of(owner))
        await until(lambda: not runtime.pods() and not runtime.store.find("Deployment"))


async def test_replicas_share_no_port(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(replicas=4, containers=[container("engine", "--start", "60")]))
        pods = await until(lambda: runtime.pods() if len(runtime.pods()) == 4 else None)
        ports = [port["containerPort"] for pod in pods for port in pod["spec"]["containers"][0]["ports"]]
        assert len(set(ports)) == 8


async def test_a_port_that_somebody_took_in_between_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken, choose = other.getsockname()[1], ports.free_port
        first = iter([taken])
        monkeypatch.setattr(ports, "free_port", lambda known: next(first, 0) or choose(known))
        async with local(tmp_path) as runtime:
            await runtime.apply(deployment())
            (pod,) = await runtime.ready_pods(1)
            assert taken not in {port_of(pod), port_of(pod, "internal")}
            [message] = runtime.events("PortTaken")
            assert message.startswith(f"port {taken} was taken by ")
