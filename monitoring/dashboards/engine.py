"""The dashboard of engines: what each computes, and where its time and memory go."""

from __future__ import annotations

from typing import Final

from monitoring.dashboards.panels import Page, Panel, Row, percentiles

_NOW: Final = (
    Panel(
        title="Running",
        kind="stat",
        width=4,
        queries={"": "sum(blade_llm_num_requests_running{SELECTED})"},
    ),
    Panel(
        title="Waiting",
        kind="stat",
        width=4,
        queries={"": "sum(blade_llm_num_requests_waiting{SELECTED})"},
        red_above=50,
    ),
    Panel(
        title="Fullest KV cache",
        kind="stat",
        width=4,
        unit="percentunit",
        queries={"": "max(blade_llm_kv_cache_usage_ratio{SELECTED})"},
        red_above=0.95,
    ),
    Panel(
        title="Generated tokens per second",
        kind="stat",
        width=4,
        unit="cps",
        queries={"": "sum(rate(blade_llm_generation_tokens_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Prefix-cache hits",
        kind="stat",
        width=4,
        unit="percentunit",
        queries={
            "": "sum(rate(blade_llm_prompt_tokens_cached_total{SELECTED}[RATE])) "
            "/ sum(rate(blade_llm_prompt_tokens_total{SELECTED}[RATE]))"
        },
        text="Share of prompt tokens that the prefix cache had.",
    ),
    Panel(
        title="Preemptions per minute",
        kind="stat",
        width=4,
        queries={"": "60 * sum(rate(blade_llm_num_preemptions_total{SELECTED}[RATE]))"},
        red_above=10,
    ),
)
_LOAD: Final = (
    Panel(title="Running requests", queries={"{{pod}}": "sum by (pod) (blade_llm_num_requests_running{SELECTED})"}),
    Panel(title="Waiting requests", queries={"{{pod}}": "sum by (pod) (blade_llm_num_requests_waiting{SELECTED})"}),
    Panel(
        title="KV cache in use",
        unit="percentunit",
        top=1,
        queries={"{{pod}}": "max by (pod) (blade_llm_kv_cache_usage_ratio{SELECTED})"},
    ),
    Panel(
        title="Tokens per second",
        unit="cps",
        queries={
            "prompt": "sum(rate(blade_llm_prompt_tokens_total{SELECTED}[RATE]))",
            "of these from the cache": "sum(rate(blade_llm_prompt_tokens_cached_total{SELECTED}[RATE]))",
            "generated": "sum(rate(blade_llm_generation_tokens_total{SELECTED}[RATE]))",
        },
        text="Tokens received, found in the prefix cache, and generated, of all engines together.",
    ),
    Panel(
        title="Generated tokens by engine",
        unit="cps",
        queries={"{{pod}}": "sum by (pod) (rate(blade_llm_generation_tokens_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Finished requests",
        kind="stack",
        unit="reqps",
        queries={
            "{{finished_reason}}": "sum by (finished_reason) (rate(blade_llm_request_success_total{SELECTED}[RATE]))"
        },
    ),
)
_LATENCY: Final = (
    Panel(title="Time to first token", unit="s", queries=percentiles("blade_llm_time_to_first_token_seconds")),
    Panel(title="Time between tokens", unit="s", queries=percentiles("blade_llm_inter_token_latency_seconds")),
    Panel(title="Time per output token", unit="s", queries=percentiles("blade_llm_time_per_output_token_seconds")),
    Panel(
        title="Where a request's time goes",
        kind="stack",
        unit="s",
        queries={
            phase: f"sum(rate(blade_llm_request_{phase}_time_seconds_sum{{SELECTED}}[RATE])) "
            f"/ sum(rate(blade_llm_request_{phase}_time_seconds_count{{SELECTED}}[RATE]))"
            for phase in ("queue", "prefill", "decode")
        },
        text="Mean seconds that a request waits, computes its prompt, and generates.",
    ),
    Panel(title="Time in the engine's queue", unit="s", queries=percentiles("blade_llm_request_queue_time_seconds")),
    Panel(title="Prefill", unit="s", queries=percentiles("blade_llm_request_prefill_time_seconds")),
    Panel(title="Decode", unit="s", queries=percentiles("blade_llm_request_decode_time_seconds")),
    Panel(title="Prefill and decode", unit="s", queries=percentiles("blade_llm_request_inference_time_seconds")),
    Panel(title="Whole requests", unit="s", queries=percentiles("blade_llm_e2e_request_latency_seconds")),
)
_MEMORY: Final = (
    Panel(
        title="Memory by purpose",
        kind="stack",
        unit="bytes",
        width=12,
        queries={"{{device}} {{purpose}}": "sum by (device, purpose) (blade_llm_memory_bytes{SELECTED})"},
    ),
    Panel(
        title="Free memory",
        unit="bytes",
        width=12,
        queries={"{{pod}}": 'min by (pod) (blade_llm_memory_bytes{SELECTED,purpose="free"})'},
        text="What is left of the GPU beside the plan, or of the host for an engine that computes there.",
    ),
    Panel(
        title="Preemptions",
        unit="cps",
        queries={"{{pod}}": "sum by (pod) (rate(blade_llm_num_preemptions_total{SELECTED}[RATE]))"},
    ),
    Panel(title="KV blocks", queries={"{{pod}}": "max by (pod) (blade_llm_kv_cache_blocks{SELECTED})"}),
    Panel(
        title="Resident memory of the API server",
        unit="bytes",
        queries={
            "{{pod}}": "sum by (pod) (process_resident_memory_bytes{SELECTED} "
            "and on (namespace, pod) blade_llm_request_success_total)"
        },
        text="Of the process that answers the scrape.",
    ),
)
_LENGTHS: Final = (
    Panel(title="Tokens of a prompt", queries=percentiles("blade_llm_request_prompt_tokens")),
    Panel(title="Tokens of all outputs", queries=percentiles("blade_llm_request_generation_tokens")),
    Panel(title="Tokens of the longest output", queries=percentiles("blade_llm_request_max_num_generation_tokens")),
)
_ADAPTERS: Final = (
    Panel(title="Adapters", queries={"{{pod}}": "max by (pod) (blade_llm_lora_adapters{SELECTED})"}),
    Panel(
        title="Adapter hits",
        unit="reqps",
        queries={"{{tier}}": "sum by (tier) (rate(blade_llm_lora_hits_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Adapters that move",
        unit="cps",
        queries={
            "to {{tier}}": "sum by (tier) (rate(blade_llm_lora_loads_total{SELECTED}[RATE]))",
            "out of the host": "sum(rate(blade_llm_lora_host_evictions_total{SELECTED}[RATE]))",
        },
        text="Adapters brought to the device or into host memory, and those that left it for others.",
    ),
)
_SPECULATION: Final = (
    Panel(
        title="Accepted draft tokens",
        unit="percentunit",
        top=1,
        queries={
            "accepted": "sum(rate(blade_llm_spec_decode_num_accepted_tokens_total{SELECTED}[RATE])) "
            "/ sum(rate(blade_llm_spec_decode_num_draft_tokens_total{SELECTED}[RATE]))"
        },
        text="Share of draft tokens that the model would have sampled itself.",
    ),
    Panel(
        title="Accepted tokens of a draft",
        queries={
            "tokens": "sum(rate(blade_llm_spec_decode_num_accepted_tokens_total{SELECTED}[RATE])) "
            "/ sum(rate(blade_llm_spec_decode_num_drafts_total{SELECTED}[RATE]))"
        },
        text="Mean number of tokens that a draft saves steps for.",
    ),
    Panel(
        title="Acceptance by position",
        unit="percentunit",
        top=1,
        queries={
            "{{position}}": "sum by (position) "
            "(rate(blade_llm_spec_decode_num_accepted_tokens_per_pos_total{SELECTED}[RATE])) "
            "/ on () group_left () sum(rate(blade_llm_spec_decode_num_drafts_total{SELECTED}[RATE]))"
        },
        text="Share of drafts whose first, second, … token was accepted.",
    ),
)
_IMAGES: Final = (
    Panel(
        title="Images",
        unit="cps",
        queries={
            "received": "sum(rate(blade_llm_images_total{SELECTED}[RATE]))",
            "encoded": "sum(rate(blade_llm_images_encoded_total{SELECTED}[RATE]))",
            "found in the encoder cache": "sum(rate(blade_llm_encoder_cache_hits_total{SELECTED}[RATE]))",
        },
        text="Images of requests, and what became of them; the others were found in the prefix cache.",
    ),
    Panel(
        title="Bytes of images",
        unit="Bps",
        queries={"{{pod}}": "sum by (pod) (rate(blade_llm_image_bytes_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Requests that wait for their images",
        queries={"{{pod}}": "sum by (pod) (rate(blade_llm_image_seconds_total{SELECTED}[RATE]))"},
        text="How many at a time have their images fetched and decoded, on the average.",
    ),
)
_API: Final = (
    Panel(
        title="Fields of requests that were left out",
        unit="cps",
        queries={"fields": "sum(rate(blade_llm_ignored_fields_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Responses that were not kept",
        unit="cps",
        queries={"responses": "sum(rate(blade_llm_unkept_responses_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Spans and payload records that were dropped",
        unit="cps",
        queries={
            "spans": "sum(rate(blade_llm_spans_dropped_total{SELECTED}[RATE]))",
            "payloads": "sum(rate(blade_llm_payloads_dropped_total{SELECTED}[RATE]))",
        },
    ),
    Panel(
        title="CPU of the API server",
        queries={
            "{{pod}}": "sum by (pod) (rate(process_cpu_seconds_total{SELECTED}[RATE]) "
            "and on (namespace, pod) blade_llm_request_success_total)"
        },
        text="Cores used by the process that answers the scrape.",
    ),
)
_ENGINES: Final = 'blade_llm_num_requests_running{namespace=~"$namespace"'
PAGE: Final = Page(
    uid="bladellm-engine",
    title="BladeLLM / Engine",
    text="Engines of LLMServices: batches, KV cache, latency by phase, memory, adapters and speculation.",
    variables={
        "namespace": ("blade_llm_num_requests_running", "namespace"),
        "service": (f"{_ENGINES}}}", "serving_bladellm_io_name"),
        "pod": (f'{_ENGINES},serving_bladellm_io_name=~"$service"}}', "pod"),
    },
    rows=(
        Row("Now", _NOW),
        Row("Load", _LOAD),
        Row("Latency", _LATENCY),
        Row("Memory", _MEMORY),
        Row("Lengths", _LENGTHS),
        Row("LoRA adapters", _ADAPTERS),
        Row("Speculative decoding", _SPECULATION),
        Row("Images", _IMAGES),
        Row("API server", _API),
    ),
)
