"""Prometheus metric names. They follow vLLM's where the meaning is equal, with our prefix.

What each means stands in the catalogue of the program that exposes it.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class MetricSpec(NamedTuple):
    """What a program says of one of its metrics."""

    name: str
    """Without the suffix that its samples have: ``_total`` of a counter, ``_bucket``, ``_sum``, ``_count``."""
    kind: Kind
    text: str
    """Its help text."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Of its values; empty for a number of things, which the text names."""


# engine
ENGINE_RUNNING: Final = "blade_llm_num_requests_running"
ENGINE_WAITING: Final = "blade_llm_num_requests_waiting"
ENGINE_KV_USAGE: Final = "blade_llm_kv_cache_usage_ratio"
ENGINE_KV_BLOCKS: Final = "blade_llm_kv_cache_blocks"
ENGINE_MEMORY: Final = "blade_llm_memory_bytes"
ENGINE_PREEMPTIONS: Final = "blade_llm_num_preemptions"
ENGINE_DRAFTS: Final = "blade_llm_spec_decode_num_drafts"
ENGINE_DRAFT_TOKENS: Final = "blade_llm_spec_decode_num_draft_tokens"
ENGINE_ACCEPTED_TOKENS: Final = "blade_llm_spec_decode_num_accepted_tokens"
ENGINE_ACCEPTED_PER_POSITION: Final = "blade_llm_spec_decode_num_accepted_tokens_per_pos"
ENGINE_PROMPT_TOKENS: Final = "blade_llm_prompt_tokens"
ENGINE_CACHED_TOKENS: Final = "blade_llm_prompt_tokens_cached"
ENGINE_GENERATION_TOKENS: Final = "blade_llm_generation_tokens"
ENGINE_ADAPTERS: Final = "blade_llm_lora_adapters"
ENGINE_ADAPTER_HITS: Final = "blade_llm_lora_hits"
ENGINE_ADAPTER_LOADS: Final = "blade_llm_lora_loads"
ENGINE_ADAPTER_EVICTIONS: Final = "blade_llm_lora_host_evictions"
ENGINE_REQUESTS: Final = "blade_llm_request_success"
ENGINE_IGNORED_FIELDS: Final = "blade_llm_ignored_fields"
ENGINE_UNKEPT_RESPONSES: Final = "blade_llm_unkept_responses"
ENGINE_SPANS_DROPPED: Final = "blade_llm_spans_dropped"
ENGINE_PAYLOADS_DROPPED: Final = "blade_llm_payloads_dropped"
ENGINE_IMAGES: Final = "blade_llm_images"
ENGINE_IMAGE_BYTES: Final = "blade_llm_image_bytes"
ENGINE_IMAGE_SECONDS: Final = "blade_llm_image_seconds"
ENGINE_IMAGES_ENCODED: Final = "blade_llm_images_encoded"
ENGINE_ENCODER_CACHE_HITS: Final = "blade_llm_encoder_cache_hits"
ENGINE_TTFT: Final = "blade_llm_time_to_first_token_seconds"
ENGINE_TPOT: Final = "blade_llm_time_per_output_token_seconds"
ENGINE_ITL: Final = "blade_llm_inter_token_latency_seconds"
ENGINE_QUEUE_TIME: Final = "blade_llm_request_queue_time_seconds"
ENGINE_PREFILL_TIME: Final = "blade_llm_request_prefill_time_seconds"
ENGINE_DECODE_TIME: Final = "blade_llm_request_decode_time_seconds"
ENGINE_INFERENCE_TIME: Final = "blade_llm_request_inference_time_seconds"
ENGINE_PROMPT_LENGTH: Final = "blade_llm_request_prompt_tokens"
ENGINE_OUTPUT_LENGTH: Final = "blade_llm_request_generation_tokens"
ENGINE_LONGEST_OUTPUT: Final = "blade_llm_request_max_num_generation_tokens"
ENGINE_E2E: Final = "blade_llm_e2e_request_latency_seconds"

# router
ROUTER_REQUESTS: Final = "blade_router_requests"
ROUTER_IN_FLIGHT: Final = "blade_router_in_flight_requests"
ROUTER_CONNECTIONS: Final = "blade_router_client_connections"
ROUTER_EVICTED_CONNECTIONS: Final = "blade_router_evicted_connections"
ROUTER_BODY_BYTES: Final = "blade_router_body_bytes"
ROUTER_CONFINED_KEYS: Final = "blade_router_confined_keys"
ROUTER_RETRIES: Final = "blade_router_retries"
ROUTER_RESUMES: Final = "blade_router_resumes"
ROUTER_TTFT: Final = "blade_router_time_to_first_byte_seconds"
ROUTER_E2E: Final = "blade_router_request_duration_seconds"
ROUTER_ENDPOINT_UP: Final = "blade_router_endpoint_up"
ROUTER_ENDPOINT_IN_FLIGHT: Final = "blade_router_endpoint_in_flight_requests"
ROUTER_QUEUE_WAIT: Final = "blade_router_queue_duration_seconds"
ROUTER_TTFT_STREAM: Final = "blade_router_time_to_first_token_seconds"
ROUTER_TPOT: Final = "blade_router_time_per_output_token_seconds"
ROUTER_MODEL_REQUESTS: Final = "blade_router_model_requests"
ROUTER_TOKENS: Final = "blade_router_tokens"
ROUTER_REFUSED: Final = "blade_router_refused_requests"
ROUTER_RETRIES_EXHAUSTED: Final = "blade_router_retries_exhausted"
ROUTER_SPANS_DROPPED: Final = "blade_router_spans_dropped"
ROUTER_HIT_RATIO: Final = "blade_router_prefix_hit_ratio"
ROUTER_SYNC_EVENTS: Final = "blade_router_replica_sync_events"
ROUTER_SYNC_SIBLINGS: Final = "blade_router_replica_sync_siblings"
ROUTER_DRAIN: Final = "blade_router_drain_seconds"
ROUTER_BREAKER: Final = "blade_router_endpoint_breaker_state"
ROUTER_ENDPOINT_WEIGHT: Final = "blade_router_endpoint_weight_ratio"
ROUTER_QUEUE_REQUESTS: Final = "blade_router_queue_requests"
ROUTER_QUEUE_TOKENS: Final = "blade_router_queue_tokens"
ROUTER_QUEUE_BYTES: Final = "blade_router_queue_bytes"
ROUTER_QUEUE_OLDEST: Final = "blade_router_queue_oldest_seconds"
ROUTER_QUEUE_P95: Final = "blade_router_queue_age_p95_seconds"
ROUTER_SATURATION: Final = "blade_router_pool_saturation_ratio"
ROUTER_SHADOWS: Final = "blade_router_shadow_requests"
ROUTER_SHADOW_TEXTS: Final = "blade_router_shadow_texts"
ROUTER_HELD: Final = "blade_router_held_requests"
ROUTER_HELD_ARRIVALS: Final = "blade_router_held_arrivals"
