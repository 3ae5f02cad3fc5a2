"""The stream: a snapshot, then what changes; to each viewer what it may see, and to nobody who reads too slowly."""

import asyncio
import json
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.internal_port import InternalPort
from router_support.keys import SECRET, content, key, knows, post_chat, write
from router_support.serving import Running, eventually, question, serving
from router_support.streams import Reading, over, replica
from router_support.ui import Viewer, viewing

from blade_protocol.routing import EndpointConfig
from blade_protocol.state import GpuMemory, MemoryPlan, SpeculationCounts
from blade_router.ui import viewers
from blade_router.ui.scope import Tick
from blade_router.ui.stream import Stream

OTHER = "sk-another"
USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 30}}  # type: ignore[dict-item]
MEMORY = MemoryPlan(
    weights=1,
    activation_peak=1,
    kv_cache=1,
    kv_block_bytes=1,
    kv_blocks=100,
    kv_tokens=1600,
    max_model_len=100,
    concurrent_at_max_len=1.0,
)


def of(viewer: Viewer, model: str) -> dict[str, object]:
    """The only request for a model."""
    (row,) = [row for row in viewer.state["requests"] if row["model"] == model]
    return dict(row)


async def test_a_snapshot_has_what_was_and_updates_have_what_comes(engine: MockEngine) -> None:
    engine.usage = USAGE
    async with serving(engine) as router:
        await router.chat(stream=True, headers={"x-request-id": "first"})
        async with viewing(router.client) as viewer:
            name, state = await viewer.next()
            assert name == "snapshot"
            assert state["router"]["scope"] == "all"
            assert (state["router"]["keyed"], state["router"]["key"], state["service"]) == (False, None, None)
            assert [each["name"] for each in state["endpoints"]] == ["a"]
            assert state["endpoints"][0]["state"] == "ready"
            row = viewer.row("first")
            assert row is not None
            assert (row["status"], row["stream"], row["endpoint"], row["model"]) == (200, True, "a", "mock")
            assert (row["promptTokens"], row["cachedTokens"], row["completionTokens"]) == (40, 30, 3)
            assert row["queued"] is None
            assert 0 <= row["chosen"] <= row["firstToken"] <= row["end"]
            assert row["reason"].startswith("auto prefix=")
            assert row["attempts"] == [{"endpoint": "a", "at": row["chosen"], "outcome": "200"}]
            await router.chat(headers={"x-request-id": "second"})
            await viewer.until(lambda state: viewer.row("second"))
            assert [name for name, _ in viewer.events[1:]] == ["update"] * (len(viewer.events) - 1)
            assert "router" not in viewer.events[-1][1]
            point = viewer.state["traffic"]["points"][-1]
            assert point["ttft"] is not None
            assert point["prefixHit"] == 0.75
            seconds = [point["time"] for point in viewer.state["traffic"]["points"]]
            assert seconds == sorted(set(seconds))


async def test_a_request_in_flight_is_shown_until_it_ends(engine: MockEngine) -> None:
    engine.gate = asyncio.Semaphore(1)
    async with serving(engine) as router, viewing(router.client) as viewer:
        sending = asyncio.create_task(router.chat(stream=True, headers={"x-request-id": "long"}))
        await viewer.until(lambda state: (row := viewer.row("long")) and row["firstToken"] is not None)
        row = viewer.row("long")
        assert row is not None
        assert (row["status"], row["end"], row["stream"]) == (None, None, True)
        assert row["attempts"][0]["outcome"] == "running"
        assert viewer.state["endpoints"][0]["inFlight"] == 1
        for _ in range(9):
            engine.gate.release()
        await sending
        await viewer.until(lambda state: (row := viewer.row("long")) and row["status"] == 200)
        assert len([row for row in viewer.state["requests"] if row["id"] == "long"]) == 1
        assert viewer.state["endpoints"][0]["inFlight"] == 0


async def test_retries_are_shown(engine: MockEngine) -> None:
    engine.mode = "status"
    async with MockEngine("b") as good, serving(engine, good, policy="round-robin") as router:
        responses = [await router.chat() for _ in range(2)]
        assert [each.status_code for each in responses] == [200, 200]
        async with viewing(router.client) as viewer:
            await viewer.next()
            retried = next(row for row in viewer.state["requests"] if len(row["attempts"]) == 2)
            tries = [(each["endpoint"], each["outcome"]) for each in retried["attempts"]]
            assert tries == [("a", "500"), ("b", "200")]
            assert retried["attempts"][0]["at"] <= retried["attempts"][1]["at"] == retried["chosen"]
            assert retried["reason"].endswith("retry=500")


async def test_a_refused_request_is_shown_with_its_error(keys_file: Path) -> None:
    async with serving(keys=keys_file) as router:
        write(keys_file, content(key(web_ui="all")))
        await eventually(lambda: any(each.sees_all for each in router.router.admission.keyring.keys))
        await post_chat(router, "sk-wrong", model="x")
        async with viewing(router.client, SECRET) as viewer:
            await viewer.next()
            row = of(viewer, "x")
            assert (row["status"], row["error"], row["key"], row["endpoint"]) == (401, "invalid_api_key", None, None)
            assert row["attempts"] == []


async def test_a_resumed_stream_has_both_engines() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router, viewing(router.client) as viewer:
        async with Reading.of(router, a, b, user="resumed") as stream:
            lost, left = stream.engine, stream.other()
            await lost.kill()
            await stream.rest(left)
        state = await viewer.until(lambda state: state["requests"] and state["requests"][0]["status"] == 200)
        (row,) = state["requests"]
        tries = [(each["endpoint"], each["outcome"]) for each in row["attempts"]]
        assert tries == [(lost.name, "reset"), (left.name, "resumed")]
        assert row["firstToken"] <= row["attempts"][0]["at"] <= row["attempts"][1]["at"] <= row["end"]


async def test_engines_are_shown_as_they_report(engine: MockEngine) -> None:
    state = {
        "model": "qwen",
        "running": 3,
        "waiting": 1,
        "max_running": 8,
        "kv_blocks_free": 75,
        "memory": MEMORY,
        "gpus": (GpuMemory(name="H100", used=10, total=80),),
        "speculation": SpeculationCounts(drafts=1, draft_tokens=10, accepted_tokens=5),
    }
    async with InternalPort(**state) as internal:
        endpoints = (EndpointConfig(url=engine.url, name="a", internal_url=internal.url),)
        async with serving(wait=False, endpoints=endpoints) as router, viewing(router.client) as viewer:
            await viewer.until(lambda state: state["endpoints"][0]["running"] == 3)
            row = viewer.state["endpoints"][0]
            assert (row["waiting"], row["maxRunning"], row["revision"]) == (1, 8, "rev-7")
            assert (row["kvUsed"], row["kvTokens"], row["kvTokensTotal"]) == (0.25, 400, 1600)
            assert row["gpus"] == [{"name": "H100", "memoryUsed": 10, "memoryTotal": 80}]
            assert row["models"] == ["qwen"]
            await viewer.until(lambda state: state["router"]["models"])
            assert viewer.state["router"]["models"] == [{"id": "qwen", "kind": "base", "parent": None}]


async def test_a_key_sees_its_own_and_nothing_of_others(engine: MockEngine, keys_file: Path) -> None:
    write(keys_file, content(key(), key("team-b", OTHER), key("ops", "sk-ops", web_ui="all")))
    async with serving(engine, keys=keys_file) as router:
        await knows(router, "ops", "sk-ops")
        await post_chat(router, model="mine")
        await post_chat(router, OTHER, model="theirs")
        async with viewing(router.client, SECRET) as viewer, viewing(router.client, "sk-ops") as ops:
            await viewer.next()
            await post_chat(router, OTHER, model="theirs-too")
            await post_chat(router, model="mine-too")
            await viewer.until(lambda state: any(row["model"] == "mine-too" for row in state["requests"]))
            await ops.until(lambda state: any(row["model"] == "mine-too" for row in state["requests"]))
            everything = json.dumps(viewer.events)
            assert "theirs" not in everything
            assert "team-b" not in everything
            assert engine.url not in everything
            assert viewer.state["router"]["scope"] == "own"
            assert viewer.state["router"]["key"] == "team-a"
            assert {row["key"] for row in viewer.state["requests"]} == {"team-a"}
            assert {row["model"] for row in ops.state["requests"]} == {"mine", "theirs", "theirs-too", "mine-too"}
            assert ops.state["router"]["scope"] == "all"
            for text in (everything, json.dumps(ops.events)):
                assert SECRET not in text
                assert "hello" not in text  # the prompt


async def test_a_key_sees_no_more_of_its_requests_than_their_responses_say(engine: MockEngine, keys_file: Path) -> None:
    """Where an engine is, how much of a prompt it has cached and how busy it is tells of others."""
    write(keys_file, content(key(requests_per_minute=1)))
    endpoints = (EndpointConfig(url=engine.url),)
    async with serving(keys=keys_file, endpoints=endpoints) as router:
        await knows(router, "team-a", SECRET)
        async with viewing(router.client, SECRET) as viewer:
            await viewer.next()
            response = await post_chat(router, model="served")
            refused = await post_chat(router, model="refused")
            assert (response.status_code, refused.status_code) == (200, 429)
            await viewer.until(lambda state: len(state["requests"]) == 2)
            row = of(viewer, "served")
            assert row["endpoint"] == response.headers["x-blade-endpoint"] == viewer.state["endpoints"][0]["name"]
            assert row["reason"] == response.headers["x-blade-route-reason"] == "auto"
            assert [each["endpoint"] for each in row["attempts"]] == [row["endpoint"]]  # type: ignore[attr-defined]
            assert of(viewer, "refused")["status"] == 429
        async with viewing(router.client, SECRET) as again:
            await again.next()
            assert engine.url not in json.dumps([viewer.events, again.events])


async def test_a_key_whose_rights_change_is_shown_what_it_may_use_now(engine: MockEngine, keys_file: Path) -> None:
    write(keys_file, content(key(models=["mock"])))
    async with serving(engine, keys=keys_file) as router:
        await eventually(lambda: any(each.models for each in router.router.admission.keyring.keys))
        async with viewing(router.client, SECRET) as viewer:
            await viewer.next()
            write(keys_file, content(key(models=["other"])))
            await viewer.until_it_ends()


async def test_pages_that_are_opened_in_the_same_second_share_one_look(
    engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, look, looks = Stream.tick, Stream._look, []

    async def never(self: Stream, now: float) -> None:
        """The next second does not come."""

    async def counted(self: Stream, now: float) -> Tick:
        looks.append(now)
        return await look(self, now)

    monkeypatch.setattr(Stream, "tick", never)
    monkeypatch.setattr(Stream, "_look", counted)
    async with serving(engine) as router:
        ui = router.router._ui
        assert ui is not None
        for _ in range(3):
            async with viewing(router.client) as viewer:
                await viewer.next()
            await eventually(lambda: ui.stream.viewers.count == 0)
        assert len(looks) == 1
        await tick(ui.stream, looks[0] + 1.0)
        assert ui.stream._tick is None


@pytest.mark.parametrize("secret", ["", "sk-wrong"])
async def test_without_a_key_there_is_nothing_to_see(engine: MockEngine, keys_file: Path, secret: str) -> None:
    async with serving(engine, keys=keys_file) as router:
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        response = await router.client.get("/ui/stream", headers=headers)
        like = await router.client.get("/v1/models", headers=headers)
        assert (response.status_code, response.json()) == (401, like.json())
        assert (await router.client.get("/ui/", headers=headers)).status_code == 200, "no secret is in the files"


async def test_a_key_that_is_gone_sees_nothing_more(engine: MockEngine, keys_file: Path) -> None:
    async with serving(engine, keys=keys_file) as router, viewing(router.client, SECRET) as viewer:
        await viewer.next()
        write(keys_file, content(key("team-b", OTHER)))
        await viewer.until_it_ends()
        assert router.router._ui is not None
        await eventually(lambda: router.router._ui.stream.viewers.count == 0)  # type: ignore[union-attr]


async def test_there_are_only_so_many_viewers(
    engine: MockEngine, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "MOST_OF_KEY", 1)
    monkeypatch.setattr(viewers, "MOST", 2)
    write(keys_file, content(key(), key("team-b", OTHER), key("team-c", "sk-c")))
    async with serving(engine, keys=keys_file) as router:
        await knows(router, "team-c", "sk-c")
        async with viewing(router.client, SECRET) as first:
            await first.next()
            refused = await router.client.get("/ui/stream", headers={"authorization": f"Bearer {SECRET}"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            async with viewing(router.client, OTHER) as second:
                await second.next()
                refused = await router.client.get("/ui/stream", headers={"authorization": "Bearer sk-c"})
                assert refused.json()["error"]["code"] == "too_many_viewers"
        async with viewing(router.client, SECRET) as again:
            await again.next()


async def _open_unread(router: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=1024)
    writer.write(b"GET /ui/stream HTTP/1.1\r\nhost: router\r\n\r\n")
    await writer.drain()
    return reader, writer


async def test_a_viewer_that_does_not_read_is_dropped(engine: MockEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "STALLED_SECONDS", 0.0)
    async with serving(engine) as router:
        ui = router.router._ui
        assert ui is not None
        _, writer = await _open_unread(router)
        await eventually(lambda: ui.stream.viewers.count == 1)
        (scope,) = ui.stream.viewers.scopes.values()
        monkeypatch.setattr(type(scope), "snapshot", lambda self: b"data: " + b"x" * (32 << 20) + b"\n\n")
        for viewer in ui.stream.viewers.of(scope):
            viewer._behind = True
        await eventually(lambda: ui.stream.viewers.count == 0)
        writer.close()


async def test_one_that_missed_updates_gets_everything_anew(engine: MockEngine) -> None:
    async with serving(engine) as router, viewing(router.client) as viewer:
        assert (await viewer.next())[0] == "snapshot"
        ui = router.router._ui
        assert ui is not None
        (scope,) = ui.stream.viewers.scopes.values()
        (page,) = ui.stream.viewers.of(scope)
        page._behind = True
        while (await viewer.next())[0] != "snapshot":
            pass


async def test_without_viewers_nothing_is_kept(engine: MockEngine) -> None:
    async with serving(engine) as router:
        async with viewing(router.client) as viewer:
            await router.chat()
            await viewer.until(lambda state: state["requests"])
        ui = router.router._ui
        assert ui is not None
        await eventually(lambda: ui.stream.viewers.count == 0 and not ui.stream._board.rows)
        assert not ui.stream.viewers.scopes


async def test_a_router_that_stops_does_not_wait_for_its_viewers(engine: MockEngine) -> None:
    async with serving(engine, drain_timeout=30) as router, viewing(router.client) as viewer:
        await viewer.next()
        stopping = asyncio.create_task(router.server.stop())
        await viewer.until_it_ends()
        await asyncio.wait_for(stopping, 10)


async def test_head_of_the_stream_ends_at_once(engine: MockEngine) -> None:
    async with serving(engine) as router:
        response = await router.client.head("/ui/stream")
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "connect-src 'self'" in response.headers["content-security-policy"]


async def test_large_names_are_cut(engine: MockEngine) -> None:
    async with serving(engine) as router:
        await router.client.post("/v1/chat/completions", json=question() | {"model": "m" * 10_000})
        async with viewing(router.client) as viewer:
            await viewer.next()
            assert of(viewer, "m" * 256)
