"""No generating route leaves out in silence what another one does, or what vLLM and SGLang know."""

from __future__ import annotations

import msgspec
import pytest

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.messages.requests import CountTokensRequest, MessagesRequest
from blade_llm.api.responses.requests import ResponsesRequest
from blade_llm.server.field_support import ignored_by, refused_by

GENERATING = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
OF_VLLM = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template chat_template_kwargs
continue_final_message documents ec_transfer_params echo ignore_eos include_reasoning include_stop_str_in_output
kv_transfer_params length_penalty logprob_token_ids media_io_kwargs min_p min_tokens mm_processor_kwargs priority
prompt_embeds prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id return_mm_kwargs
return_prompt_text return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
session_id skip_special_tokens spaces_between_special_tokens stop_token_ids stream_interval structured_outputs
thinking_token_budget top_k truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking
"""
OF_VLLM_IN_RESPONSES = "enable_response_messages previous_input_messages previous_response"
OF_SGLANG = """
bootstrap_host bootstrap_port bootstrap_room custom_labels custom_logit_processor custom_params data_parallel_rank
disagg_prefill_dp_rank ebnf extra_key images_config json_schema lora_path ngram_corpus_id no_stop_trim regex
return_cached_tokens_details return_hidden_states return_routed_experts rid routed_dp_rank routed_experts_start_len
separate_reasoning session_params stop_regex stream_reasoning structural_tag
"""


def _known(body: type[msgspec.Struct]) -> set[str]:
    return {*body.__struct_fields__, *ignored_by(body), *refused_by(body)}


@pytest.mark.parametrize("body", GENERATING)
def test_every_field_of_one_is_known_to_all(body: type[msgspec.Struct]) -> None:
    for other in GENERATING:
        own = {*other.__struct_fields__}
        if other is ResponsesRequest:  # its words for what others call differently
            own -= {"input", "instructions", "include", "text", "reasoning", "max_output_tokens", "max_tool_calls"}
        if other is MessagesRequest:
            own -= {"system", "stop_sequences", "output_config", "output_format"}
        assert own <= _known(body)


def test_a_message_may_be_counted_as_it_is() -> None:
    assert {*MessagesRequest.__struct_fields__} <= {
        *CountTokensRequest.__struct_fields__,
        *ignored_by(CountTokensRequest),
    }
    assert ignored_by(MessagesRequest).keys() <= ignored_by(CountTokensRequest).keys()
    assert refused_by(MessagesRequest) == refused_by(CountTokensRequest)


@pytest.mark.parametrize("body", GENERATING)
def test_the_fields_of_vllm_and_sglang(body: type[msgspec.Struct]) -> None:
    wanted = {*OF_VLLM.split(), *OF_SGLANG.split()}
    if body is ResponsesRequest:
        wanted |= set(OF_VLLM_IN_RESPONSES.split())
    assert wanted <= _known(body)


@pytest.mark.parametrize("body", GENERATING)
def test_no_field_is_both_ignored_and_refused(body: type[msgspec.Struct]) -> None:
    both = (ignored_by(body).keys() & refused_by(body).keys()) - {*body.__struct_fields__}
    assert not both
