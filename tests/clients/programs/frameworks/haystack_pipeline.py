"""Haystack: ``OpenAIChatGenerator`` takes the server's URL as ``api_base_url``."""

from __future__ import annotations

import os
from typing import Any, Literal

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from case import API_KEY, BASE_URL, MODEL, Client
from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel, Field

CLIENT = Client("Haystack", "haystack-ai")
ADDRESS: dict[str, Any] = {"api_key": Secret.from_token(API_KEY), "api_base_url": BASE_URL, "model": MODEL}
QUESTION = [ChatMessage.from_user("What does len do?")]


class Fact(BaseModel):
    """A fact about Python."""

    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


@tool
def lookup(name: Literal["len", "abs"]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name}: the number of items in a container"


def chat(**options: Any) -> OpenAIChatGenerator:
    """The server's model."""
    return OpenAIChatGenerator(**ADDRESS, generation_kwargs={"temperature": 0, "max_tokens": 120, **options})


def result_of(called: ChatMessage) -> ChatMessage:
    """The function run, and what it returned as the next message."""
    return ChatMessage.from_tool(lookup.invoke(**called.tool_call.arguments), origin=called.tool_call)


@CLIENT.case("basic")
async def basic() -> str:
    (reply,) = chat().run(QUESTION)["replies"]
    assert "number of items" in reply.text
    assert reply.meta["finish_reason"] == "stop"
    assert reply.meta["usage"]["completion_tokens"] > 0
    (again,) = (await chat().run_async(QUESTION))["replies"]
    assert again.text == reply.text
    return reply.text


@CLIENT.case("stream")
async def stream() -> str:
    """Pieces as they come, blocking and not; the usage when it is asked for."""
    pieces: list[StreamingChunk] = []

    async def take(piece: StreamingChunk) -> None:
        pieces.append(piece)

    usage = {"stream_options": {"include_usage": True}}
    (reply,) = chat(**usage).run(QUESTION, streaming_callback=pieces.append)["replies"]
    text = "".join(piece.content for piece in pieces)
    assert text == reply.text
    assert reply.meta["usage"]["completion_tokens"] > 0
    pieces.clear()
    await chat().run_async(QUESTION, streaming_callback=take)
    assert "".join(piece.content for piece in pieces) == text == chat().run(QUESTION)["replies"][0].text
    return f"{len(pieces)} pieces: {text}"


@CLIENT.case("tools")
def tools() -> str:
    """The call, its result and the answer."""
    (called,) = chat(tool_choice="required").run(QUESTION, tools=[lookup], tools_strict=True)["replies"]
    assert called.meta["finish_reason"] == "tool_calls"
    assert called.tool_call.tool_name == "lookup"
    (reply,) = chat(tool_choice="none").run([*QUESTION, called, result_of(called)], tools=[lookup])["replies"]
    assert not reply.tool_calls
    assert "number of items" in reply.text
    return f"{called.tool_call.arguments} → {reply.text}"


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    pieces: list[StreamingChunk] = []
    named = {"type": "function", "function": {"name": "lookup"}}
    (called,) = chat(tool_choice=named).run(QUESTION, streaming_callback=pieces.append, tools=[lookup])["replies"]
    assert "".join(delta.arguments or "" for piece in pieces for delta in piece.tool_calls or [])
    assert set(called.tool_call.arguments) == {"name"}
    return f"{len(pieces)} pieces: {called.tool_call.arguments}"


@CLIENT.case("agent")
def agent() -> str:
    """An agent that ends with its first call's result."""
    helper = Agent(chat_generator=chat(tool_choice="required"), tools=[lookup], exit_conditions=["lookup"])
    found = helper.run(QUESTION)
    assert found["last_message"].tool_call_result.result.endswith("the number of items in a container")
    return found["last_message"].tool_call_result.result


@CLIENT.case("structured")
def structured() -> str:
    """A pydantic model and a schema as a dictionary."""
    (reply,) = chat(response_format=Fact).run(QUESTION)["replies"]
    schema = {"name": "Fact", "strict": True, "schema": {**Fact.model_json_schema(), "additionalProperties": False}}
    form = {"type": "json_schema", "json_schema": schema}
    (by_schema,) = chat(response_format=form).run(QUESTION)["replies"]
    assert Fact.model_validate_json(reply.text)
    assert Fact.model_validate_json(by_schema.text)
    return reply.text


@CLIENT.case("pipeline: retrieval, embeddings")
async def retrieval() -> str:
    """Documents found by their vectors, and a prompt made of them."""
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    index = Pipeline()
    index.add_component("embedder", OpenAIDocumentEmbedder(**ADDRESS, progress_bar=False))
    index.add_component("writer", DocumentWriter(store))
    index.connect("embedder", "writer")
    index.run({"embedder": {"documents": [Document(content="len counts."), Document(content="abs.")]}})
    ask = Pipeline()
    ask.add_component("embedder", OpenAITextEmbedder(**ADDRESS))
    ask.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    template = [ChatMessage.from_user("{{documents[0].content}} What does len do?")]
    ask.add_component("prompt", ChatPromptBuilder(template, required_variables="*"))
    ask.add_component("model", chat())
    ask.connect("embedder.embedding", "retriever.query_embedding")
    ask.connect("retriever", "prompt.documents")
    ask.connect("prompt", "model.messages")
    found = await ask.run_async({"embedder": {"text": "len counts."}}, include_outputs_from={"retriever"})
    assert found["retriever"]["documents"][0].content == "len counts."
    return found["model"]["replies"][0].text


@CLIENT.case("responses")
def responses() -> str:
    """The same through ``/v1/responses``: whole, streamed, with a tool, of a form."""
    options = {"temperature": 0, "max_output_tokens": 120}
    model = OpenAIResponsesChatGenerator(**ADDRESS, generation_kwargs=options)
    pieces: list[StreamingChunk] = []
    (reply,) = model.run(QUESTION)["replies"]
    model.run(QUESTION, streaming_callback=pieces.append)
    assert "number of items" in reply.text == "".join(piece.content for piece in pieces)
    forced = {**options, "tool_choice": "required"}
    (called,) = model.run(QUESTION, generation_kwargs=forced, tools=[lookup])["replies"]
    (answer,) = model.run([*QUESTION, called, result_of(called)])["replies"]
    assert "number of items" in answer.text
    (fact,) = model.run(QUESTION, generation_kwargs={**options, "text_format": Fact})["replies"]
    assert Fact.model_validate_json(fact.text)
    return f"{len(pieces)} pieces: {reply.text} {called.tool_call.arguments}"


CLIENT.main()
