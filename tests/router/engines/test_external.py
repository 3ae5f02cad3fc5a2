"""vLLM and SGLang engines: their load reports, and a fleet of three kinds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.engine import MockEngine
from router_support.external_engine import SGLANG_METRICS, VLLM_METRICS, models, set_metrics
from router_support.internal_port import InternalPort
from router_support.serving import eventually, serving

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines import watchers
from blade_router.engines.external import ExternalEngine
from blade_router.engines.prometheus_text import samples


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "POLL_SECONDS", 0.02)


def test_samples_are_found_in_a_page_as_engines_write_it() -> None:
    page = (
        b'# TYPE a gauge\na 1\na{x="1",y="p \\" q} 2"} 2.5e+01\na{x="2"} NaN\na +Inf\nab 4\nb{broken\na\na{} \na x\n\n'
    )
    found = [(sample.labels, sample.value) for sample in samples(page, {"a"})]
    assert found == [({}, 1.0), ({"x": "1", "y": 'p \\" q} 2'}, 25.0)]
    assert not list(samples(page, {"c"}))


@given(st.binary(max_size=200))
def test_no_page_is_too_strange(page: bytes) -> None:
    list(samples(page + b"\na" + page, {"a"}))


async def test_a_vllm_engine_reports_load_capacity_models_and_adapters() -> None:
    async with MockEngine("v") as engine:
        set_metrics(engine, VLLM_METRICS, running=4, waiting=3, usage=0.5)
        engine.pages["/v1/models"] = models("m", "alias", adapters=("german",))
        endpoint = Endpoint(EndpointConfig(url=engine.url, engine="vllm"))
        await ExternalEngine(endpoint).poll()
        assert (endpoint.report.running, endpoint.report.waiting, endpoint.report.kv_usage) == (5, 3, 0.5), (
            "all ranks together"
        )
        assert endpoint.report.cache_tokens == 4_000
        assert endpoint.report.adapters == {"french", "dutch", "german"}
        assert endpoint.report.models == {"m", "alias", *endpoint.report.adapters}
        assert endpoint.report.reported_at > 0
        engine.pages["/metrics"] = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'  # an older version
        await ExternalEngine(endpoint).poll()
        assert (endpoint.report.running, endpoint.report.kv_usage) == (5, 0.25)


async def test_an_sglang_engine_reports_load_capacity_and_models() -> None:
    async with MockEngine("s") as engine:
        set_metrics(engine, SGLANG_METRICS, running=2, waiting=7, usage=0.28)
        engine.pages["/v1/models"] = models("m")
        endpoint = Endpoint(EndpointConfig(url=engine.url, engine="sglang"))
        await ExternalEngine(endpoint).poll()
        assert (endpoint.report.running, endpoint.report.waiting, endpoint.report.kv_usage) == (2, 7, 0.28)
        assert (endpoint.report.cache_tokens, endpoint.report.models, endpoint.report.adapters) == (
            5_000,
            {"m"},
            frozenset(),
        )


@pytest.mark.parametrize("page", ["", "nonsense\n\x00", 'vllm:num_requests_running{engine="0"} many\n'])
async def test_metrics_that_are_missing_fail_nothing(page: str) -> None:
    async with MockEngine("v") as engine:
        engine.pages.update({"/metrics": page, "/v1/models": models("m")})
        endpoint = Endpoint(EndpointConfig(url=engine.url, engine="vllm"))
        await ExternalEngine(endpoint).poll()
        assert (endpoint.report.running, endpoint.report.kv_usage, endpoint.report.models) == (0, None, {"m"})


async def test_a_mixed_fleet() -> None:
    """One of ours, a vLLM and an SGLang behind one router: all healthy, known, and used."""
    async with (
        MockEngine("ours") as ours,
        InternalPort(running=1) as port,
        MockEngine("vllm") as vllm,
        MockEngine("sglang") as sglang,
    ):
        for engine, metrics, running in ((vllm, VLLM_METRICS, 1), (sglang, SGLANG_METRICS, 3)):
            set_metrics(engine, metrics, running=running, waiting=0, usage=0.1)
            engine.pages["/v1/models"] = models("m")
        configs = (
            EndpointConfig(url=ours.url, name="ours", internal_url=port.url),
            EndpointConfig(url=vllm.url, name="vllm", engine="vllm"),
            EndpointConfig(url=sglang.url, name="sglang", engine="sglang"),
        )
        async with serving(endpoints=configs, policy="round-robin", wait=False) as router:
            endpoints = router.router.endpoints
            await eventually(lambda: endpoints.usable_count() == 3)
            await eventually(lambda: [endpoint.report.running for endpoint in endpoints.all] == [1, 2, 3])
            await eventually(lambda: all(endpoint.report.models >= {"m"} for endpoint in endpoints.all))
            set_metrics(sglang, SGLANG_METRICS, running=9, waiting=0, usage=0.1)
            await eventually(lambda: endpoints.all[2].report.running == 9)
            shown = (await router.status())["endpoints"]
            assert [shown[name]["engine"] for name in ("ours", "vllm", "sglang")] == ["blade", "vllm", "sglang"]
            assert (shown["sglang"]["running"], shown["vllm"]["cache_tokens"], shown["ours"]["models"]) == (
                9,
                4_000,
                ["m"],
            )
            for stream in (False, True):
                responses = [await router.chat(stream=stream) for _ in range(6)]
                assert [response.status_code for response in responses] == [200] * 6
                assert {response.headers["x-blade-endpoint"] for response in responses} == {"ours", "vllm", "sglang"}
            vllm.pages["/metrics"] = "broken"
            vllm.health = 500
            await eventually(lambda: endpoints.usable_count() == 2)
            assert (await router.chat()).status_code == 200
