"""Anthropic's own client through a router with API keys: what it does with an engine alone, it does here."""

import asyncio
import re
from pathlib import Path

import pytest
from engine_support.anthropic_script import run_program, write_agent_model
from engine_support.server_process import running_server
from router_support.keys import SECRET, content, key
from router_support.serving import serving

from blade_protocol.routing import EndpointConfig


@pytest.mark.clients
async def test_the_official_client(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(content(key()))
    with running_server(tmp_path, write_agent_model(tmp_path / "tools"), engine="scripted") as server:
        endpoint = EndpointConfig(url=server.url, internal_url=server.internal_url, name="a")
        async with serving(wait=False, endpoints=(endpoint,), keys=keys) as router:
            found = await asyncio.to_thread(run_program, router.url, SECRET)
            metrics = (await router.admin.get("/metrics")).text
    assert (found.returncode, found.stdout) == (0, "all well\n"), found.stderr
    found_tokens = {
        kind: float(value)
        for kind, value in re.findall(
            r'blade_router_tokens_total\{key="team-a",kind="(\w+)",model="tools"\} (.+)', metrics
        )
    }
    assert found_tokens["prompt"] > found_tokens["cached"] > 0, "turns of a conversation share their prefix"
    assert found_tokens["completion"] > 0
