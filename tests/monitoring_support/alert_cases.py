"""For each alert: series with which it fires, and similar ones with which it does not. One value a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ROUTER: Final = 'namespace="team",serving_bladellm_io_name="demo"'
POD: Final = f'{ROUTER},pod="demo-engine-0"'
SYSTEM: Final = 'namespace="system",pod="operator-0"'
SERVICE: Final = {"namespace": "team", "serving_bladellm_io_name": "demo"}
ENGINE: Final = SERVICE | {"pod": "demo-engine-0"}
OPERATOR: Final = {"namespace": "system"}

Series = Mapping[str, str]
"""Values in promtool's notation (``start+step x times``), by series."""


@dataclass(frozen=True, slots=True)
class Case:
    """Series that are bad, and the same where all is well. ``labels``: of the alert; ``minutes``: when it fires."""

    bad: Series
    good: Series
    labels: Mapping[str, str]
    minutes: int = 60
    also_good: tuple[Series, ...] = field(default=())


def _buckets(name: str, labels: str, quick: str, slow: str, bound: float) -> dict[str, str]:
    """Of ``slow`` requests a minute all took less than four times ``bound`` seconds, ``quick`` less than once."""
    return {
        f'{name}_bucket{{{labels},le="{bound}"}}': quick,
        f'{name}_bucket{{{labels},le="{4 * bound}"}}': slow,
        f'{name}_bucket{{{labels},le="+Inf"}}': slow,
    }


def _up(*values: int) -> dict[str, str]:
    return {
        f'blade_router_endpoint_up{{{ROUTER},endpoint="e{place}"}}': f"{value}x90" for place, value in enumerate(values)
    }


CASES: Final[Mapping[str, Case]] = {
    "BladeServiceErrors": Case(
        {
            f'blade_router_requests_total{{{ROUTER},code="200"}}': "0+9x90",
            f'blade_router_requests_total{{{ROUTER},code="502"}}': "0+1x90",
        },
        {
            f'blade_router_requests_total{{{ROUTER},code="200"}}': "0+99x90",
            f'blade_router_requests_total{{{ROUTER},code="502"}}': "0+1x90",
        },
        SERVICE,
        also_good=({f'blade_router_requests_total{{{ROUTER},code="429"}}': "0+9x90"},),
    ),
    "BladeServiceNoEngine": Case(
        {f"blade_router_held_arrivals_total{{{ROUTER}}}": "0+1x90", **_up(0, 0)},
        {f"blade_router_held_arrivals_total{{{ROUTER}}}": "0+1x90", **_up(0, 1)},
        SERVICE,
        also_good=({f"blade_router_held_arrivals_total{{{ROUTER}}}": "7x90", **_up(0)},),
    ),
    "BladeServiceSlowFirstToken": Case(
        _buckets("blade_router_time_to_first_token_seconds", ROUTER, "0+9x90", "0+10x90", 20),
        _buckets("blade_router_time_to_first_token_seconds", ROUTER, "0+10x90", "0+10x90", 20),
        SERVICE,
    ),
    "BladeServiceSlowTokens": Case(
        _buckets("blade_router_time_per_output_token_seconds", ROUTER, "0+8x90", "0+10x90", 0.5),
        _buckets("blade_router_time_per_output_token_seconds", ROUTER, "0+10x90", "0+10x90", 0.5),
        SERVICE,
    ),
    "BladeServiceQueueOld": Case(
        {f"blade_router_queue_oldest_seconds{{{ROUTER}}}": "40x90"},
        {f"blade_router_queue_oldest_seconds{{{ROUTER}}}": "20x90"},
        SERVICE,
        also_good=({f"blade_router_queue_oldest_seconds{{{ROUTER}}}": "40 40 5 40 40 5 40 40 5 40 40 5 40 40 5x80"},),
    ),
    "BladeServiceOverloaded": Case(
        {f"blade_router_pool_saturation_ratio{{{ROUTER}}}": "1.5x90"},
        {f"blade_router_pool_saturation_ratio{{{ROUTER}}}": "1.1x90"},
        SERVICE,
    ),
    "BladeServiceRefusing": Case(
        {
            f'blade_router_refused_requests_total{{{ROUTER},reason="queue_full"}}': "0+1x90",
            f'blade_router_requests_total{{{ROUTER},code="200"}}': "0+10x90",
        },
        {
            f'blade_router_refused_requests_total{{{ROUTER},reason="invalid_json"}}': "0+9x90",
            f'blade_router_requests_total{{{ROUTER},code="200"}}': "0+10x90",
        },
        SERVICE,
    ),
    "BladeServiceStreamsLost": Case(
        {f'blade_router_resumes_total{{{ROUTER},outcome="failed"}}': "0+1x90"},
        {f'blade_router_resumes_total{{{ROUTER},outcome="resumed"}}': "0+1x90"},
        SERVICE,
    ),
    "BladeServiceRetriesExhausted": Case(
        {f"blade_router_retries_exhausted_total{{{ROUTER}}}": "0+2x90"},
        {f"blade_router_retries_exhausted_total{{{ROUTER}}}": "0 5 5x90"},
        SERVICE,
    ),
    "BladeServiceEngineEjected": Case(
        {f'blade_router_endpoint_breaker_state{{{ROUTER},endpoint="e0"}}': "2x90"},
        {f'blade_router_endpoint_breaker_state{{{ROUTER},endpoint="e0"}}': "1x90"},
        SERVICE | {"endpoint": "e0"},
    ),
    "BladeServiceKeyConfined": Case(
        {f"blade_router_confined_keys{{{ROUTER}}}": "1x90"},
        {f"blade_router_confined_keys{{{ROUTER}}}": "0x90"},
        SERVICE,
    ),
    "BladeEngineStuck": Case(
        {
            f"blade_llm_num_requests_running{{{POD}}}": "3x90",
            f"blade_llm_generation_tokens_total{{{POD}}}": "5x90",
            f"blade_llm_prompt_tokens_total{{{POD}}}": "5x90",
        },
        {
            f"blade_llm_num_requests_running{{{POD}}}": "3x90",
            f"blade_llm_generation_tokens_total{{{POD}}}": "0+5x90",
            f"blade_llm_prompt_tokens_total{{{POD}}}": "5x90",
        },
        ENGINE,
        also_good=(
            {
                f"blade_llm_num_requests_running{{{POD}}}": "0x90",
                f"blade_llm_generation_tokens_total{{{POD}}}": "5x90",
                f"blade_llm_prompt_tokens_total{{{POD}}}": "5x90",
            },
        ),
    ),
    "BladeEngineCacheFull": Case(
        {f"blade_llm_kv_cache_usage_ratio{{{POD}}}": "0.99x90", f"blade_llm_num_requests_waiting{{{POD}}}": "2x90"},
        {f"blade_llm_kv_cache_usage_ratio{{{POD}}}": "0.99x90", f"blade_llm_num_requests_waiting{{{POD}}}": "0x90"},
        ENGINE,
    ),
    "BladeEnginePreempting": Case(
        {f"blade_llm_num_preemptions_total{{{POD}}}": "0+3x90", f"blade_llm_request_success_total{{{POD}}}": "0+10x90"},
        {f"blade_llm_num_preemptions_total{{{POD}}}": "0+1x90", f"blade_llm_request_success_total{{{POD}}}": "0+10x90"},
        ENGINE,
    ),
    "BladeEngineQueueLong": Case(
        _buckets("blade_llm_request_queue_time_seconds", POD, "0+8x90", "0+10x90", 10),
        _buckets("blade_llm_request_queue_time_seconds", POD, "0+10x90", "0+10x90", 10),
        ENGINE,
    ),
    "BladeEngineMemoryLow": Case(
        {
            f'blade_llm_memory_bytes{{{POD},device="cpu",purpose="free"}}': "4x90",
            f'blade_llm_memory_bytes{{{POD},device="cpu",purpose="weights"}}': "96x90",
        },
        {
            f'blade_llm_memory_bytes{{{POD},device="cpu",purpose="free"}}': "9x90",
            f'blade_llm_memory_bytes{{{POD},device="cpu",purpose="weights"}}': "91x90",
        },
        ENGINE,
        also_good=(
            {
                f'blade_llm_memory_bytes{{{POD},device="cuda",purpose="free"}}': "1x90",
                f'blade_llm_memory_bytes{{{POD},device="cuda",purpose="weights"}}': "99x90",
            },
        ),
    ),
    "BladeEngineAdaptersThrash": Case(
        {
            f"blade_llm_lora_host_evictions_total{{{POD}}}": "0+3x90",
            f"blade_llm_request_success_total{{{POD}}}": "0+10x90",
        },
        {
            f"blade_llm_lora_host_evictions_total{{{POD}}}": "0+1x90",
            f"blade_llm_request_success_total{{{POD}}}": "0+10x90",
        },
        ENGINE,
    ),
    "BladeEngineDraftsRejected": Case(
        {
            f"blade_llm_spec_decode_num_accepted_tokens_total{{{POD}}}": "0+1x120",
            f"blade_llm_spec_decode_num_draft_tokens_total{{{POD}}}": "0+20x120",
        },
        {
            f"blade_llm_spec_decode_num_accepted_tokens_total{{{POD}}}": "0+9x120",
            f"blade_llm_spec_decode_num_draft_tokens_total{{{POD}}}": "0+20x120",
        },
        SERVICE,
        minutes=100,
        also_good=(
            {
                f"blade_llm_spec_decode_num_accepted_tokens_total{{{POD}}}": "1x120",
                f"blade_llm_spec_decode_num_draft_tokens_total{{{POD}}}": "9x120",
            },
        ),
    ),
    "BladeTargetDown": Case(
        {f'up{{{POD},job="engines"}}': "0x90"},
        {f'up{{{POD},job="engines"}}': "1x90"},
        ENGINE | {"job": "engines"},
        also_good=({'up{job="something else"}': "0x90"},),
    ),
    "BladeOperatorNoLeader": Case(
        {f"blade_operator_leader{{{SYSTEM}}}": "0x90"},
        {
            f"blade_operator_leader{{{SYSTEM}}}": "0x90",
            'blade_operator_leader{namespace="system",pod="operator-1"}': "1x90",
        },
        OPERATOR,
    ),
    "BladeServiceNotReady": Case(
        {f'blade_operator_service_ready{{{SYSTEM},service_namespace="team",service_name="demo"}}': "0x90"},
        {f'blade_operator_service_ready{{{SYSTEM},service_namespace="team",service_name="demo"}}': "1x90"},
        {"service_namespace": "team", "service_name": "demo"},
    ),
    "BladeOperatorReconcileFailing": Case(
        {f"blade_operator_reconcile_failures_total{{{SYSTEM}}}": "0+1x90"},
        {f"blade_operator_reconcile_failures_total{{{SYSTEM}}}": "0 3 3x90"},
        OPERATOR,
    ),
    "BladeOperatorSlow": Case(
        _buckets("blade_operator_reconcile_seconds", SYSTEM, "0+9x90", "0+10x90", 5),
        _buckets("blade_operator_reconcile_seconds", SYSTEM, "0+10x90", "0+10x90", 5),
        OPERATOR,
    ),
    "BladeOperatorQueueLong": Case(
        {f"blade_operator_queue_depth{{{SYSTEM}}}": "60x90"},
        {f"blade_operator_queue_depth{{{SYSTEM}}}": "20x90"},
        OPERATOR,
    ),
    "BladeOperatorDecisionsFailing": Case(
        {f"blade_operator_decision_failures_total{{{SYSTEM}}}": "0+1x90"},
        {f"blade_operator_decision_failures_total{{{SYSTEM}}}": "0 3 3x90"},
        OPERATOR,
    ),
    "BladeOperatorApiErrors": Case(
        {
            f'blade_operator_api_requests_total{{{SYSTEM},code="200"}}': "0+9x90",
            f'blade_operator_api_requests_total{{{SYSTEM},code="0"}}': "0+1x90",
        },
        {
            f'blade_operator_api_requests_total{{{SYSTEM},code="200"}}': "0+9x90",
            f'blade_operator_api_requests_total{{{SYSTEM},code="409"}}': "0+1x90",
        },
        OPERATOR,
    ),
    "BladeOperatorWatchRestarts": Case(
        {f'blade_operator_watch_restarts_total{{{SYSTEM},kind="Pod"}}': "0+1x90"},
        {f'blade_operator_watch_restarts_total{{{SYSTEM},kind="Pod"}}': "0 2 2x90"},
        OPERATOR | {"kind": "Pod"},
    ),
    "BladeOperatorKindSkipped": Case(
        {f'blade_operator_skipped{{{SYSTEM},exported_namespace="a",kind="Pod"}}': "1x90"},
        {f'blade_operator_skipped{{{SYSTEM},exported_namespace="a",kind="Pod"}}': "0x90"},
        OPERATOR | {"exported_namespace": "a", "kind": "Pod"},
    ),
    "BladeOperatorUnauthorized": Case(
        {f"blade_operator_engine_unauthorized_total{{{SYSTEM}}}": "0+1x90"},
        {f"blade_operator_engine_unauthorized_total{{{SYSTEM}}}": "5x90"},
        OPERATOR,
    ),
}
