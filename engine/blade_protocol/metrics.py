"""Prometheus metric names. They follow vLLM's where the meaning is equal, with our prefix."""

from typing import Final

# engine
ENGINE_RUNNING: Final = "blade_llm_num_requests_running"
ENGINE_WAITING: Final = "blade_llm_num_requests_waiting"
ENGINE_KV_USAGE: Final = "blade_llm_kv_cache_usage_ratio"
ENGINE_KV_BLOCKS: Final = "blade_llm_kv_cache_blocks"
ENGINE_PREEMPTIONS: Final = "blade_llm_num_preemptions"
ENGINE_PROMPT_TOKENS: Final = "blade_llm_prompt_tokens"
ENGINE_CACHED_TOKENS: Final = "blade_llm_prompt_tokens_cached"
ENGINE_GENERATION_TOKENS: Final = "blade_llm_generation_tokens"
ENGINE_REQUESTS: Final = "blade_llm_request_success"
ENGINE_TTFT: Final = "blade_llm_time_to_first_token_seconds"
ENGINE_TPOT: Final = "blade_llm_time_per_output_token_seconds"
ENGINE_E2E: Final = "blade_llm_e2e_request_latency_seconds"

# router
ROUTER_REQUESTS: Final = "blade_router_requests"
ROUTER_IN_FLIGHT: Final = "blade_router_in_flight_requests"
ROUTER_RETRIES: Final = "blade_router_retries"
ROUTER_RESUMES: Final = "blade_router_resumes"
ROUTER_TTFT: Final = "blade_router_time_to_first_byte_seconds"
ROUTER_E2E: Final = "blade_router_request_duration_seconds"
ROUTER_ENDPOINT_UP: Final = "blade_router_endpoint_up"
ROUTER_ENDPOINT_IN_FLIGHT: Final = "blade_router_endpoint_in_flight_requests"
