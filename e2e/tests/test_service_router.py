"""What routers do for clients on a cluster: they require keys, and hold requests until there is an engine."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from e2e.support.load import chat, client
from e2e.support.prompts import RESPONSES, ChatResult
from e2e.support.service import Service, names
from e2e.tests.conftest import DEMO

KEYS = "team-keys"
ROUNDS = 6
"""Requests on connections of their own: both routers get some."""


def set_keys(service: Service, *owners: str) -> None:
    """``kubectl apply`` of a Secret with a key for each owner and no other; as hashes, which is all routers need."""
    entries = {owner: f"sha256:{hashlib.sha256(key(owner).encode()).hexdigest()}" for owner in owners}
    data = {owner: base64.b64encode(text.encode()).decode() for owner, text in entries.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS}, "data": data}
    service.kubectl("apply", "-f", "-", input=json.dumps(secret))


def key(owner: str) -> str:
    return f"sk-of-{owner}"


def status_codes(url: str, owner: str = "") -> set[int]:
    """Status codes of a few requests with the key of ``owner``, or without any."""
    headers = {"authorization": f"Bearer {key(owner)}"} if owner else {}
    return {
        httpx.get(f"{url}/v1/models", headers=headers, trust_env=False, timeout=30).status_code for _ in range(ROUNDS)
    }


def test_keys_come_and_go_with_their_secret(demo: Service) -> None:
    set_keys(demo, "alice")
    demo.apply(**{**DEMO, "router": {**DEMO["router"], "auth": {"keysSecret": {"name": KEYS}}}})
    demo.wait_until_converged(1)
    routers = names(demo.pods("router"))
    with demo.reach() as url:
        assert (status_codes(url), status_codes(url, "bob"), status_codes(url, "alice")) == ({401}, {401}, {200})
        set_keys(demo, "bob")
        demo.until(
            lambda: status_codes(url, "bob") == {200} and status_codes(url, "alice") == {401},
            "with bob's key alone",
            30,
        )
        assert status_codes(url) == {401}
    assert names(demo.pods("router")) == routers


def test_requests_wait_while_a_service_comes_from_zero(demo: Service) -> None:
    demo.kubectl("scale", "llm", "demo", "--replicas=0")
    demo.until(lambda: demo.status()["phase"] == "ScaledToZero" and not demo.pods("engine"), "at zero")

    def send(question: str, stream: bool) -> ChatResult:
        with client() as http:
            return chat(http, url, question, stream=stream)

    def send_once_it_is_scaled_up(question: str, stream: bool) -> ChatResult:
        while "scaled_to_zero" in (result := send(question, stream)).detail:
            time.sleep(0.05)
        return result

    with demo.reach() as url, ThreadPoolExecutor() as pool:
        # Nobody wakes it but who scales it up: from then on requests wait for the first engine.
        question = next(iter(RESPONSES))
        demo.until(lambda: "scaled_to_zero" in send(question, stream=False).detail, "refusing at once", 30)
        demo.kubectl("scale", "llm", "demo", "--replicas=1")
        pending = [
            pool.submit(send_once_it_is_scaled_up, question, stream)
            for question in list(RESPONSES)[:2]
            for stream in (False, True)
        ]
        demo.wait_until_converged(1)
        given = [each.result() for each in pending]
    [engine] = names(demo.pods("engine"))
    assert [(result.outcome, result.detail) for result in given] == [("ok", "")] * 4
    assert {result.endpoint for result in given if not result.stream} == {engine}
