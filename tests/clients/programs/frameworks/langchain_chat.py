"""LangChain (langchain-openai): ``base_url`` is the server's; its vectors leave OpenAI's tokenizer files alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import httpx
from case import API_KEY, BASE_URL, MODEL, ROOT_URL, TURN, Client, until
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

CLIENT = Client("LangChain", "langchain-openai")
QUESTION = "What does len do?"


class Fact(BaseModel):
    """A fact about Python."""

    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


@tool
def lookup(name: Annotated[str, Field(max_length=20)]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name}: the number of items in a container"


def chat(**options: Any) -> ChatOpenAI:
    """The server's model."""
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, temperature=0, max_tokens=120, **options)


@CLIENT.case("basic")
def basic() -> str:
    answer = chat().invoke([("system", "You are a helpful assistant."), ("user", QUESTION)])
    assert "number of items" in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    return answer.content


@CLIENT.case("basic, async, batch, chain")
async def batch() -> str:
    chain = ChatPromptTemplate.from_messages([("user", "What does {name} do?")]) | chat() | StrOutputParser()
    answers = await chain.abatch([{"name": "len"}, {"name": "abs"}])
    assert answers == [await chain.ainvoke({"name": name}) for name in ("len", "abs")]
    assert "number of items" in answers[0]
    return answers[1]


@CLIENT.case("stream")
def stream() -> str:
    """``stream_usage``: LangChain asks a server that is not OpenAI's for its usage only when told to."""
    chunks = until(
        lambda chunks: len([chunk for chunk in chunks if chunk.content]) > 1,
        lambda: list(chat(stream_usage=True).stream(QUESTION)),
    )
    whole: AIMessageChunk = sum(chunks[1:], chunks[0])
    assert whole.content == chat().invoke(QUESTION).content
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata["output_tokens"] > 0
    return f"{len(chunks)} chunks: {whole.content}"


@CLIENT.case("logprobs")
def logprobs() -> str:
    found = chat().bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert found
    assert all(len(token["top_logprobs"]) == 2 for token in found)
    return f"{len(found)} tokens"


@CLIENT.case("completions")
def completions() -> str:
    llm = OpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, temperature=0, max_tokens=12)
    whole = llm.invoke(TURN)
    assert "number of items" in whole
    assert "".join(llm.stream(TURN)) == whole
    return whole


@CLIENT.case("tools")
def tools() -> str:
    """One turn of an agent by hand: the call, its result, the answer."""
    asked = [HumanMessage(QUESTION)]
    called = chat().bind_tools([lookup], tool_choice="any", strict=True).invoke(asked)
    assert called.response_metadata["finish_reason"] == "tool_calls", called
    assert not called.invalid_tool_calls, called
    (call,) = called.tool_calls
    result = lookup.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.tool_call_id == call["id"]
    answer = chat().bind_tools([lookup], tool_choice="none").invoke([*asked, called, result])
    assert not answer.tool_calls
    assert "number of items" in answer.text
    return f"{call['args']} → {result.content}"


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    """``parallel_tool_calls`` and a choice by name; the pieces of the call join to whole arguments."""
    bound = chat().bind_tools([lookup], tool_choice="lookup", parallel_tool_calls=False)
    chunks = list(bound.stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    assert [call["name"] for call in whole.tool_calls] == ["lookup"], whole
    assert whole.tool_calls[0]["id"], whole
    assert set(whole.tool_calls[0]["args"]) == {"name"}
    return f"{len(chunks)} chunks: {whole.tool_calls[0]['args']}"


@CLIENT.case("structured")
def structured() -> str:
    """By a schema and by a function's arguments, with the message beside what was parsed."""
    shown = []
    for method in ("json_schema", "function_calling"):
        found = chat().with_structured_output(Fact, method=method, include_raw=True).invoke(QUESTION)
        assert isinstance(found["parsed"], Fact), found
        assert found["parsing_error"] is None, found
        shown.append(f"{method}: {found['parsed']!r}")
    return "; ".join(shown)


@CLIENT.case("structured, json_mode")
def json_mode() -> str:
    """Any object is an answer. This model ends none by itself: what ends strings and objects is made likely."""
    bias = {}
    for text, likelier in (('"', 100), ("}", 60)):
        body = {"model": MODEL, "prompt": text}
        (token,) = httpx.post(f"{ROOT_URL}/tokenize", json=body, timeout=60).json()["tokens"]
        bias[token] = likelier
    llm = chat(logit_bias=bias)
    found = llm.with_structured_output(None, method="json_mode", include_raw=True).invoke("What does len do? Use JSON.")
    assert isinstance(found["parsed"], dict), found
    assert found["parsing_error"] is None, found
    return found["raw"].content


@CLIENT.case("structured, stream, dict")
def structured_stream() -> str:
    """A schema as a dictionary: what is parsed grows until it is whole."""
    schema = {"title": "Fact", "description": "A fact.", **Fact.model_json_schema()}
    typed = chat().with_structured_output(schema, method="json_schema")
    parts = until(lambda parts: len(parts) > 1, lambda: list(typed.stream(QUESTION)))
    assert Fact.model_validate(parts[-1])
    return str(parts[-1])


@CLIENT.case("embeddings")
async def embeddings() -> str:
    vectors = OpenAIEmbeddings(base_url=BASE_URL, api_key=API_KEY, model=MODEL, check_embedding_ctx_length=False)
    one, two = vectors.embed_documents(["one", "two"])
    again = await vectors.aembed_query("one")
    assert len(one) == len(two)
    assert max(abs(a - b) for a, b in zip(one, again, strict=True)) < 1e-2
    return f"2 of {len(one)}"


@CLIENT.case("responses")
def responses() -> str:
    llm = chat(use_responses_api=True)
    whole = llm.invoke(QUESTION)
    assert "number of items" in whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    chunks = list(llm.stream(QUESTION))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert whole.response_metadata["id"].startswith("resp")
    return f"{len(chunks)} chunks: {whole.text}"


@CLIENT.case("responses, tools, structured")
def responses_tools() -> str:
    llm = chat(use_responses_api=True, output_version="responses/v1")
    called = llm.bind_tools([lookup], tool_choice="lookup", strict=True).invoke(QUESTION)
    (call,) = called.tool_calls
    answer = llm.bind_tools([lookup], tool_choice="none").invoke([HumanMessage(QUESTION), called, lookup.invoke(call)])
    assert not answer.tool_calls
    assert "number of items" in answer.text
    fact = llm.with_structured_output(Fact).invoke(QUESTION)
    assert isinstance(fact, Fact)
    return f"{call['args']}; {fact!r}"


@CLIENT.case("responses, conversation kept by the server")
def responses_kept() -> str:
    llm = chat(use_responses_api=True, use_previous_response_id=True)
    first = llm.invoke(QUESTION)
    second = llm.invoke([HumanMessage(QUESTION), first, HumanMessage("What does abs do?")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
    assert second.response_metadata["id"] != first.response_metadata["id"]
    return second.text


CLIENT.main()
