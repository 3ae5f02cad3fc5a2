"""Metrics of the engine's last state: its memory by purpose, and that they are what the catalogue says."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.core import Metric

from blade_llm.api.metrics.catalogue import CATALOGUE, SPECS, counter, gauge
from blade_llm.api.metrics.state import StateCollector
from blade_protocol import metrics as names
from blade_protocol.state import EngineState, MemoryPlan

PLAN = MemoryPlan(
    weights=100, activation_peak=20, kv_cache=300, kv_block_bytes=3, kv_blocks=100, kv_tokens=1600, max_model_len=128,
    concurrent_at_max_len=12.5, graphs=7, lora=8, draft=9, encoder=6, device="cuda", free=55,
)  # fmt: skip


def state(plan: MemoryPlan | None) -> EngineState:
    return EngineState(
        model="m", revision="", ready=True, draining=False, running=1, waiting=2, kv_blocks_total=100,
        kv_blocks_free=25, prompt_tokens_total=3, cached_tokens_total=1, generation_tokens_total=2, preemptions_total=0,
        epoch="e", sequence=1, memory=plan,
    )  # fmt: skip


def families(plan: MemoryPlan | None, left: int = 0) -> dict[str, Metric]:
    return {family.name: family for family in StateCollector(lambda: state(plan), lambda: left).collect()}


def memory(plan: MemoryPlan | None, left: int = 0) -> dict[tuple[str, str], float]:
    samples = families(plan, left)[names.ENGINE_MEMORY].samples
    return {(sample.labels["device"], sample.labels["purpose"]): sample.value for sample in samples}


def test_memory_of_a_gpu_is_the_plan() -> None:
    assert memory(PLAN, 1) == {
        ("cuda", "weights"): 100, ("cuda", "kv_cache"): 300, ("cuda", "activations"): 20, ("cuda", "graphs"): 7,
        ("cuda", "adapters"): 8, ("cuda", "draft"): 9, ("cuda", "images"): 6, ("cuda", "free"): 55,
    }  # fmt: skip


def test_free_memory_of_a_host_is_what_is_free_now() -> None:
    plan = msgspec.structs.replace(PLAN, device="cpu", free=None)
    assert memory(plan, 4000)[("cpu", "free")] == 4000
    assert memory(plan, 3000)[("cpu", "free")] == 3000


@pytest.mark.parametrize("plan", [None, msgspec.structs.replace(PLAN, device="")])
def test_an_engine_that_does_not_know_its_memory_says_nothing_of_it(plan: MemoryPlan | None) -> None:
    assert names.ENGINE_MEMORY not in families(plan)
    assert families(plan)[names.ENGINE_KV_USAGE].samples[0].value == 0.75


def test_every_name_of_the_protocol_is_in_the_catalogue_once() -> None:
    of_protocol = {value for name, value in vars(names).items() if name.startswith("ENGINE_")}
    assert [spec.name for spec in SPECS] == list(CATALOGUE)
    assert set(CATALOGUE) == of_protocol


def test_families_have_the_type_and_the_help_of_the_catalogue() -> None:
    for name, family in families(PLAN).items():
        assert (family.type, family.documentation) == (CATALOGUE[name].kind, CATALOGUE[name].text)
    with pytest.raises(KeyError):
        gauge("blade_llm_nonsense")
    with pytest.raises(KeyError):
        counter("blade_llm_nonsense", 1)
