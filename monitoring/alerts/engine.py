"""Alerts of engines, and of anything that cannot be scraped."""

from __future__ import annotations

from typing import Final

from monitoring.alerts.alert import SERVICE, Alert

_NAME: Final = "{{ $labels.namespace }}/{{ $labels.pod }}"

ALERTS: Final = (
    Alert(
        name="BladeEngineStuck",
        expression=(
            f"sum by ({SERVICE}, pod) (blade_llm_num_requests_running) > 0 "
            f"and on ({SERVICE}, pod) sum by ({SERVICE}, pod) (rate(blade_llm_generation_tokens_total[5m]) "
            "+ rate(blade_llm_prompt_tokens_total[5m])) == 0"
        ),
        wait="5m",
        severity="critical",
        summary=f"Engine {_NAME} does not move",
        text="It has {{ $value }} running requests and has produced no token for ten minutes.",
    ),
    Alert(
        name="BladeEngineCacheFull",
        expression=(
            f"max by ({SERVICE}, pod) (blade_llm_kv_cache_usage_ratio) > 0.95 "
            f"and on ({SERVICE}, pod) sum by ({SERVICE}, pod) (blade_llm_num_requests_waiting) > 0"
        ),
        wait="10m",
        severity="warning",
        summary=f"The KV cache of {_NAME} is full",
        text="{{ $value | humanizePercentage }} of its KV blocks are in use, and requests wait for some.",
    ),
    Alert(
        name="BladeEnginePreempting",
        expression=(
            f"sum by ({SERVICE}, pod) (rate(blade_llm_num_preemptions_total[10m])) "
            f"/ sum by ({SERVICE}, pod) (rate(blade_llm_request_success_total[10m])) > 0.2"
        ),
        wait="10m",
        severity="warning",
        summary=f"Engine {_NAME} preempts requests",
        text="There are {{ $value | humanize }} preemptions for each finished request: work is done twice.",
    ),
    Alert(
        name="BladeEngineQueueLong",
        expression=(
            f"histogram_quantile(0.9, sum by (le, {SERVICE}, pod) "
            "(rate(blade_llm_request_queue_time_seconds_bucket[10m]))) > 10"
        ),
        wait="10m",
        severity="warning",
        summary=f"Requests wait long inside {_NAME}",
        text="One request of ten waits {{ $value | humanizeDuration }} or longer for its first step.",
    ),
    Alert(
        name="BladeEngineMemoryLow",
        expression=(
            f'min by ({SERVICE}, pod) (blade_llm_memory_bytes{{device="cpu",purpose="free"}}) '
            f'/ sum by ({SERVICE}, pod) (blade_llm_memory_bytes{{device="cpu"}}) < 0.05'
        ),
        wait="5m",
        severity="warning",
        summary=f"The host of {_NAME} is short of memory",
        text="Only {{ $value | humanizePercentage }} of the memory is free: the kernel may kill the engine.",
    ),
    Alert(
        name="BladeEngineAdaptersThrash",
        expression=(
            f"sum by ({SERVICE}, pod) (rate(blade_llm_lora_host_evictions_total[15m])) "
            f"/ sum by ({SERVICE}, pod) (rate(blade_llm_request_success_total[15m])) > 0.2"
        ),
        wait="15m",
        severity="warning",
        summary=f"Engine {_NAME} reads adapters again and again",
        text="{{ $value | humanize }} adapters leave host memory for each finished request.",
    ),
    Alert(
        name="BladeEngineDraftsRejected",
        expression=(
            f"sum by ({SERVICE}) (rate(blade_llm_spec_decode_num_accepted_tokens_total[30m])) "
            f"/ sum by ({SERVICE}) (rate(blade_llm_spec_decode_num_draft_tokens_total[30m])) < 0.1"
        ),
        wait="30m",
        severity="info",
        summary="Speculative decoding of {{ $labels.namespace }}/{{ $labels.serving_bladellm_io_name }} is of no use",
        text="Only {{ $value | humanizePercentage }} of the draft tokens are accepted: it costs more than it gives.",
    ),
    Alert(
        name="BladeTargetDown",
        expression='up{serving_bladellm_io_name!=""} == 0',
        wait="10m",
        severity="warning",
        summary=f"{_NAME} cannot be scraped",
        text="Prometheus has got no metrics of this pod for ten minutes.",
    ),
)
