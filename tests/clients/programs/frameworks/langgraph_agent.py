"""LangGraph: an agent's loop on LangChain's model of the server, streamed, with memory between turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from case import API_KEY, BASE_URL, MODEL, Client
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

CLIENT = Client("LangGraph", "langgraph")
QUESTION = {"messages": [HumanMessage("What does len do?")]}


class Fact(BaseModel):
    """A fact about Python."""

    kind: Literal["function", "statement"]
    useful: bool


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


@tool
def lookup(name: Literal["len", "abs"]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name}: the number of items in a container"


def chat(**options: Any) -> ChatOpenAI:
    """The server's model."""
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, temperature=0, max_tokens=120, **options)


def react(*, saver: InMemorySaver | None = None) -> Any:
    """A graph that calls a tool first, and answers once it has a result: the loop of a ReAct agent."""

    def model(state: State) -> State:
        choice = "none" if any(isinstance(message, ToolMessage) for message in state["messages"]) else "required"
        return {"messages": [chat().bind_tools([lookup], tool_choice=choice).invoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([lookup]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


@CLIENT.case("basic")
def basic() -> str:
    """An agent without tools is a chat."""
    messages = create_agent(chat(), []).invoke(QUESTION)["messages"]
    assert isinstance(messages[-1], AIMessage)
    assert "number of items" in messages[-1].content
    return messages[-1].content


@CLIENT.case("tools")
def tools() -> str:
    """Call, result, answer: four messages, and the result is the tool's own."""
    _asked, called, result, answer = react().invoke(QUESTION)["messages"]
    assert called.tool_calls[0]["id"] == result.tool_call_id
    assert "number of items" in result.content
    assert isinstance(answer, AIMessage)
    assert not answer.tool_calls
    assert "number of items" in answer.content
    return f"{called.tool_calls[0]['args']} → {answer.content}"


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    """The model's tokens and the graph's steps in one stream."""
    steps, pieces = [], []
    async for mode, found in react().astream(QUESTION, stream_mode=["updates", "messages"]):
        if mode == "updates":
            steps += list(found)
        elif isinstance(found[0], AIMessageChunk):
            pieces.append(found[0])
    assert steps == ["model", "tools", "model"]
    assert any(piece.tool_call_chunks for piece in pieces)
    return f"{steps}, {len(pieces)} pieces"


@CLIENT.case("agent")
def agent() -> str:
    """``create_agent`` with a tool: the model calls it by itself, and answers from its result."""
    found = create_agent(chat(), [lookup]).invoke(
        {"messages": [HumanMessage("What does len do? Look it up.")]}, {"recursion_limit": 8}
    )
    kinds = [message.type for message in found["messages"]]
    assert kinds == ["human", "ai", "tool", "ai"], found
    _asked, called, _result, last = found["messages"]
    assert [(call["name"], call["args"]) for call in called.tool_calls] == [("lookup", {"name": "len"})], found
    assert "number of items" in last.content, found
    return f"{kinds} {last.content}"


@CLIENT.case("agent, forced, stream")
def agent_forced() -> str:
    """A model bound to call once, whose tool returns its result as the agent's."""
    direct = tool("lookup", return_direct=True)(lookup.func)
    graph = create_agent(chat(model_kwargs={"tool_choice": "required"}), [direct])
    steps = [step for update in graph.stream(QUESTION, stream_mode="updates") for step in update]
    assert steps == ["model", "tools"], steps
    return str(steps)


@CLIENT.case("structured")
def structured() -> str:
    """An agent's typed result, by the answer's schema (the strategy for providers that have one) and by a tool."""
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy

    found = [
        create_agent(chat(), [], response_format=strategy(Fact)).invoke(QUESTION)["structured_response"]
        for strategy in (ProviderStrategy, ToolStrategy)
    ]
    assert all(isinstance(each, Fact) for each in found), found
    return str(found)


@CLIENT.case("checkpointer")
def checkpointer() -> str:
    """The second turn has the first in its memory, its tool's call and result included; another thread has not."""
    graph = react(saver=InMemorySaver())
    here, there = ({"configurable": {"thread_id": name}} for name in ("here", "there"))
    first = graph.invoke(QUESTION, here)["messages"]
    second = graph.invoke({"messages": [HumanMessage("What does abs do?")]}, here)["messages"]
    assert [message.id for message in second[: len(first)]] == [message.id for message in first]
    assert len(second) == len(first) + 2
    assert len(graph.invoke(QUESTION, there)["messages"]) == len(first)
    assert len(list(graph.get_state_history(here))) > len(second) - 2
    return second[-1].content


CLIENT.main()
