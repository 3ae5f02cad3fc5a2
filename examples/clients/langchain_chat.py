"""LangChain: chat, streams, structured output, tools, the responses API, embeddings."""

from __future__ import annotations

from typing import Annotated

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field
from server import API_KEY, BASE_URL, model


class Fact(BaseModel):
    """A fact about Python. A schema that allows nothing else, and bounded texts, end with any model."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    useful: bool


@tool
def lookup(name: Annotated[str, Field(max_length=20)]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name} is documented"


def chat_model(**options: object) -> ChatOpenAI:
    """A model of this server."""
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=model(), temperature=0, max_tokens=200, **options)  # type: ignore[arg-type]


def chat() -> None:
    """Whole, streamed, and several at once."""
    llm = chat_model()
    answer = llm.invoke([("system", "You are a helpful assistant."), ("user", "What does len do?")])
    print("invoke     ", answer.content, answer.usage_metadata)
    print("stream     ", "|".join(str(chunk.content) for chunk in llm.stream("What does abs do?")))
    print("batch      ", [message.content for message in llm.batch(["What does len do?", "What does sorted do?"])])
    logprobs = llm.bind(logprobs=True, top_logprobs=2).invoke("What does len do?").response_metadata["logprobs"]
    print("logprobs   ", len(logprobs["content"]), "tokens")


def responses() -> None:
    """Through ``/v1/responses``."""
    llm = chat_model(use_responses_api=True)
    print("responses  ", llm.invoke("What does len do?").text)
    print("streamed   ", "|".join(chunk.text for chunk in llm.stream("What does len do?")))


def structured() -> None:
    """An answer of a given form, by schema and by a function's arguments."""
    for method in ("json_schema", "function_calling"):
        fact = chat_model().with_structured_output(Fact, method=method).invoke("What does len do?")
        print(f"{method:11}", fact)


def tools() -> None:
    """The model has to call a function."""
    answer = (
        chat_model()
        .bind_tools([lookup], tool_choice="any", strict=True, parallel_tool_calls=False)
        .invoke("What does len do?")
    )
    print("tools      ", answer.tool_calls)  # type: ignore[attr-defined]


def embeddings() -> None:
    """Vectors of texts, which travel as token ids and come back as base64."""
    vectors = OpenAIEmbeddings(base_url=BASE_URL, api_key=API_KEY, model=model(), check_embedding_ctx_length=False)  # type: ignore[arg-type]
    print("embeddings ", [len(vector) for vector in vectors.embed_documents(["one", "two"])])


if __name__ == "__main__":
    for show in (chat, responses, structured, tools, embeddings):
        show()
