"""LlamaIndex: ``OpenAILike`` takes the server's URL as ``api_base``, and the window, as no table knows its model."""

# Annotations stay objects here: LlamaIndex reads a tool's without the names of its module.
from typing import Any, Literal

import httpx
from case import API_KEY, BASE_URL, MODEL, Client, until
from llama_index.core import Document, PromptTemplate, VectorStoreIndex
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

CLIENT = Client("LlamaIndex", "llama-index-core")
QUESTION = [ChatMessage(role="user", content="What does len do?")]
TURN = "<|im_start|>user\nWhat does abs do?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = PromptTemplate("What does {name} do?")
FORCED = {"type": "function", "function": {"name": "Fact"}}


class Fact(BaseModel):
    """A fact about Python."""

    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


def lookup(name: Literal["len", "abs"]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name}: the number of items in a container"


LOOKUP = FunctionTool.from_defaults(lookup)


def llm(**options: Any) -> OpenAILike:
    """The server's model."""
    unkept = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))  # each case has its own event loop
    known = {
        "is_chat_model": True,
        "is_function_calling_model": True,
        "context_window": 4096,
        "async_http_client": unkept,
    }
    return OpenAILike(
        model=MODEL, api_base=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=120, **{**known, **options}
    )


def vectors() -> OpenAILikeEmbedding:
    """The server's embeddings."""
    return OpenAILikeEmbedding(model_name=MODEL, api_base=BASE_URL, api_key=API_KEY)


@CLIENT.case("basic")
async def basic() -> str:
    answer = llm().chat(QUESTION)
    assert "number of items" in answer.message.content
    assert answer.raw.usage.completion_tokens > 0
    assert (await llm().achat(QUESTION)).message.content == answer.message.content
    return answer.message.content


@CLIENT.case("stream")
async def stream() -> str:
    parts = list(llm().stream_chat(QUESTION))
    whole = "".join(part.delta or "" for part in parts)
    assert parts[-1].message.content == whole == llm().chat(QUESTION).message.content
    assert "".join([part.delta or "" async for part in await llm().astream_chat(QUESTION)]) == whole
    return f"{len(parts)} parts: {whole}"


@CLIENT.case("completions")
def completions() -> str:
    model = llm(is_chat_model=False)
    whole = model.complete(TURN).text
    assert "absolute value" in whole
    assert "".join(part.delta or "" for part in model.stream_complete(TURN)) == whole
    return whole


@CLIENT.case("tools")
def tools() -> str:
    """A call that the model has to make, the function run, its result in the next turn."""
    model = llm()
    found = model.chat_with_tools([LOOKUP], chat_history=QUESTION, tool_required=True)
    (call,) = model.get_tool_calls_from_response(found)
    output = LOOKUP.call(**call.tool_kwargs)
    result = ChatMessage(role="tool", content=output.content, additional_kwargs={"tool_call_id": call.tool_id})
    answer = model.chat_with_tools([LOOKUP], chat_history=[*QUESTION, found.message, result], tool_choice="none")
    assert not model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    assert "number of items" in answer.message.content
    return f"{call.tool_kwargs} → {output.content}"


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    model = llm()
    parts = [part async for part in await model.astream_chat_with_tools([LOOKUP], user_msg="len?", tool_required=True)]
    (call,) = model.get_tool_calls_from_response(parts[-1])
    assert call.tool_name == "lookup"
    assert set(call.tool_kwargs) == {"name"}
    assert call.tool_id
    return f"{len(parts)} parts: {call.tool_kwargs}"


@CLIENT.case("structured")
async def structured() -> str:
    """By a function's arguments, which is how LlamaIndex asks a server that it does not know."""
    found = llm().structured_predict(Fact, PROMPT, name="len")
    assert isinstance(found, Fact)
    assert isinstance(await llm().astructured_predict(Fact, PROMPT, name="len"), Fact)
    assert isinstance(llm().as_structured_llm(Fact).chat(QUESTION).raw, Fact)
    return repr(found)


@CLIENT.case("structured, json_schema")
def by_schema() -> str:
    """By the answer's schema, which has to be asked for."""
    model = llm(should_use_structured_outputs=True)
    found = model.structured_predict(Fact, PROMPT, name="len")
    assert isinstance(found, Fact)
    return repr(found)


@CLIENT.case("structured, stream")
def structured_stream() -> str:
    """Objects whose fields appear one by one. Only whole predictions force the call; a stream's program is told to."""
    program = FunctionCallingProgram.from_defaults(Fact, llm=llm(), prompt=PROMPT, tool_choice=FORCED)
    parts = until(lambda parts: parts[0].useful is None, lambda: list(program.stream_call(name="len")))
    last = Fact.model_validate(parts[-1].model_dump())
    return f"{len(parts)} parts: {last!r}"


@CLIENT.case("agent, stream")
async def agent() -> str:
    """``FunctionAgent``: its first turn may be told to call, and from the second on the model decides."""
    helper = FunctionAgent(tools=[LOOKUP], llm=llm(), initial_tool_choice="lookup", allow_parallel_tool_calls=False)
    context = Context(helper)
    run = helper.run("What does len do?", ctx=context)
    events = [event async for event in run.stream_events()]
    answer = await run
    results = [event for event in events if isinstance(event, ToolCallResult)]
    assert results, events
    assert results[0].tool_name == "lookup", events
    assert not results[0].tool_output.is_error, events
    assert any(isinstance(event, AgentStream) for event in events)
    assert answer.response.role == "assistant"
    assert "number of items" in answer.response.content, events
    return f"{results[0].tool_output.content}; {len(events)} events: {answer.response.content}"


@CLIENT.case("responses")
async def responses() -> str:
    """``OpenAIResponses``, which is told the window as well: whole, streamed, a call and its result, a form."""
    model = OpenAIResponses(
        model=MODEL, api_base=BASE_URL, api_key=API_KEY, temperature=0, max_output_tokens=120, context_window=4096
    )
    whole = (await model.achat(QUESTION)).message.content
    assert "number of items" in whole
    assert "".join(part.delta or "" for part in model.stream_chat(QUESTION)) == whole
    found = model.chat_with_tools([LOOKUP], chat_history=QUESTION, tool_required=True)
    (call,) = model.get_tool_calls_from_response(found)
    result = ChatMessage(role="tool", content=lookup(**call.tool_kwargs), additional_kwargs={"call_id": call.tool_id})
    assert model.chat([*QUESTION, found.message, result]).message.content
    assert isinstance(model.structured_predict(Fact, PROMPT, name="len"), Fact)
    return f"{whole} {call.tool_kwargs}"


@CLIENT.case("embeddings")
async def embeddings() -> str:
    one, _two = vectors().get_text_embedding_batch(["one", "two"])
    again = await vectors().aget_query_embedding("one")
    assert max(abs(a - b) for a, b in zip(one, again, strict=True)) < 1e-2
    return f"2 of {len(one)}"


@CLIENT.case("index, stream")
def index() -> str:
    """Documents found by their vectors, and an answer from them."""
    made = VectorStoreIndex.from_documents([Document(text="len counts."), Document(text="abs.")], embed_model=vectors())
    answer = made.as_query_engine(llm=llm(), streaming=True, similarity_top_k=1).query("len counts.")
    text = "".join(answer.response_gen)
    assert text
    assert answer.source_nodes[0].text == "len counts."
    return text


CLIENT.main()
