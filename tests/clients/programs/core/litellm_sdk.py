"""LiteLLM's SDK: ``hosted_vllm/MODEL`` or ``openai/MODEL``, ``api_base`` the server's."""

from __future__ import annotations

import json
import os

# Otherwise it fetches its tables of prices and of Anthropic's headers
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True"}

import litellm
from case import API_KEY, BASE_URL, MODEL, ROOT_URL, TURN, Client
from pydantic import BaseModel, Field

litellm.suppress_debug_info = True  # it prints where to ask for help
CLIENT = Client("LiteLLM (SDK)", "litellm")
MESSAGES = [{"role": "user", "content": "What does len do?"}]
VLLM = {"model": f"hosted_vllm/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "temperature": 0}
OPENAI = {**VLLM, "model": f"openai/{MODEL}"}
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a built-in function up in Python's documentation",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 20}},
            "required": ["name"],
        },
    },
}


class Fact(BaseModel):
    name: str = Field(max_length=20)
    useful: bool


@CLIENT.case("basic")
def basic() -> str:
    for sent in (VLLM, OPENAI):
        answer = litellm.completion(**sent, messages=MESSAGES, max_tokens=60)
        assert "number of items" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens > 0
    return answer.choices[0].message.content


@CLIENT.case("basic, async")
async def basic_async() -> str:
    answer = await litellm.acompletion(**VLLM, messages=MESSAGES, max_tokens=60)
    assert "number of items" in answer.choices[0].message.content
    return answer.choices[0].message.content


@CLIENT.case("stream")
def stream() -> str:
    sent = {**VLLM, "messages": MESSAGES, "max_tokens": 60}
    chunks = list(litellm.completion(**sent, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    whole = litellm.completion(**sent)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens
    return f"{len(chunks)} chunks: {rebuilt.choices[0].message.content}"


@CLIENT.case("stream, async")
async def stream_async() -> str:
    chunks = await litellm.acompletion(**OPENAI, messages=MESSAGES, max_tokens=60, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert "number of items" in text
    return text


@CLIENT.case("tools")
def tools() -> str:
    sent = {**VLLM, "max_tokens": 120, "tools": [TOOL]}
    message = litellm.completion(**sent, messages=MESSAGES, tool_choice="required").choices[0].message
    call = message.tool_calls[0]
    assert set(json.loads(call.function.arguments)) == {"name"}
    result = {"role": "tool", "tool_call_id": call.id, "name": "lookup", "content": "the number of items"}
    second = litellm.completion(**sent, messages=[*MESSAGES, message.model_dump(), result], tool_choice="none")
    assert not second.choices[0].message.tool_calls
    assert "number of items" in second.choices[0].message.content
    return call.function.arguments


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    forced = {"type": "function", "function": {"name": "lookup"}}
    sent = {**OPENAI, "messages": MESSAGES, "max_tokens": 120, "tools": [TOOL], "tool_choice": forced}
    (call,) = litellm.stream_chunk_builder(list(litellm.completion(**sent, stream=True))).choices[0].message.tool_calls
    assert call.function.name == "lookup"
    assert set(json.loads(call.function.arguments)) == {"name"}
    return call.function.arguments


@CLIENT.case("structured")
def structured() -> str:
    texts = []
    for sent in (VLLM, OPENAI):
        answer = litellm.completion(**sent, messages=MESSAGES, max_tokens=120, response_format=Fact)
        texts.append(Fact.model_validate_json(answer.choices[0].message.content).model_dump_json())
    return texts[0]


@CLIENT.case("responses")
def responses() -> str:
    sent = {**OPENAI, "input": "What does len do?", "max_output_tokens": 60}
    response = litellm.responses(**sent)
    (message,) = [item for item in response.output if item.type == "message"]
    assert "number of items" in message.content[0].text
    kinds = [str(event.type) for event in litellm.responses(**sent, stream=True)]
    assert "completed" in kinds[-1].lower(), kinds
    return message.content[0].text


@CLIENT.case("messages")
async def messages() -> str:
    """Anthropic's API, of the same server."""
    sent = {"model": f"anthropic/{MODEL}", "api_base": ROOT_URL, "api_key": API_KEY}
    answer = await litellm.anthropic.messages.acreate(**sent, messages=MESSAGES, max_tokens=60, temperature=0)
    assert "number of items" in answer["content"][0]["text"]
    chat = await litellm.acompletion(**sent, messages=MESSAGES, max_tokens=60, temperature=0)
    assert chat.choices[0].message.content == answer["content"][0]["text"]
    return answer["content"][0]["text"]


@CLIENT.case("text completion")
def text_completion() -> str:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt=TURN,
        api_base=BASE_URL,
        api_key=API_KEY,
        temperature=0,
        max_tokens=20,
    )
    assert "number of items" in answer.choices[0].text
    return answer.choices[0].text


@CLIENT.case("embeddings")
def embeddings() -> str:
    for model in (VLLM["model"], OPENAI["model"]):
        answer = litellm.embedding(model=model, input=["len", "sorted"], api_base=BASE_URL, api_key=API_KEY)
        assert len(answer.data) == 2
    return f"2 of {len(answer.data[0]['embedding'])}"


@CLIENT.case("health, models, tokens")
async def health() -> str:
    """What its proxy and its users ask beside answers. Tokens are counted by the server."""
    for mode in ("chat", "responses", "embedding"):
        found = await litellm.ahealth_check(model_params={**OPENAI, "messages": MESSAGES}, mode=mode, input=["x"])
        assert "error" not in found, found
    listed = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=BASE_URL, api_key=API_KEY
    )
    assert MODEL in listed
    count = await litellm.acount_tokens(model=OPENAI["model"], messages=MESSAGES, api_base=BASE_URL, api_key=API_KEY)
    answer = await litellm.acompletion(**OPENAI, messages=MESSAGES, max_tokens=5)
    assert count.total_tokens == answer.usage.prompt_tokens
    assert count.original_response["object"] == "response.input_tokens"
    return f"{count.total_tokens} tokens"


@CLIENT.case("errors")
def errors() -> str:
    """The library tells a context that is too long by our text, and falls back to other models then."""
    try:
        litellm.completion(**OPENAI, messages=[{"role": "user", "content": "len " * 9000}], max_tokens=5)
    except litellm.ContextWindowExceededError as error:
        return str(error)
    raise AssertionError("a prompt that is too long was answered")


CLIENT.main()
