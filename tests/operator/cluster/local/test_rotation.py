"""A new internal token on the local runtime: programs that run take it from its file, and know the old one, too."""

from __future__ import annotations

import base64
from pathlib import Path

from operator_support.local import Local, local, pid_of, until
from operator_support.objects import container, deployment

from blade_llm.server.http.internal_token import InternalToken
from blade_operator.model.objects import Object
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_router.config.token_header import TokenHeader

MOUNT = "/etc/bladellm-internal"


def secret(token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "qwen-internal-0f0f", "namespace": "default"},
        "type": "Opaque",
        "data": {"token": base64.b64encode(token.encode()).decode()},
    }


def mounting(name: str, role: str) -> Object:
    volumes = [{"name": "internal", "secret": {"secretName": "qwen-internal-0f0f"}}]
    mounts = [{"name": "internal", "mountPath": MOUNT, "readOnly": True}]
    program = container(role, volumeMounts=mounts)
    return deployment(name=name, role=role, volumes=volumes, containers=[program])


def files(runtime: Local) -> list[Path]:
    return sorted(runtime.runtime.layout.root.rglob("internal/token"))


async def test_a_replaced_secret_reaches_engines_and_routers_that_run(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(secret("old"))
        await runtime.apply(mounting("qwen-engine-aaa", ROLE_ENGINE), mounting("qwen-router-bbb", ROLE_ROUTER))
        pods = await runtime.ready_pods(2)
        before = {pid_of(pod, pod["spec"]["containers"][0]["name"]) for pod in pods}
        one, other = files(runtime)
        engine, now = InternalToken(one), 0.0
        router = TokenHeader(other, clock=lambda: now)
        assert b"old" in router.lines()
        await runtime.runtime.cluster.replace(secret("new"))
        await until(lambda: {path.read_text() for path in files(runtime)} == {"new"})
        now += 1.0
        assert all(map(engine.accepts, ("new", "old"))), "a router may be later"
        lines = router.lines()
        assert all(f": {token}\r\n".encode() in lines for token in ("new", "old")), "an engine may be later"
        after = {pid_of(pod, pod["spec"]["containers"][0]["name"]) for pod in runtime.pods()}
        assert after == before
