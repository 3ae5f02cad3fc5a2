"""LlamaIndex: chat, streams, completions, structured output, embeddings."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field
from server import API_KEY, BASE_URL, model

QUESTION = [ChatMessage(role="user", content="What does len do?")]


class Fact(BaseModel):
    """A fact about Python. A schema that allows nothing else, and bounded texts, end with any model."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    useful: bool


def llm(**options: object) -> OpenAILike:
    """A model of this server."""
    return OpenAILike(
        model=model(), api_base=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=200, context_window=4096, **options
    )


def chat() -> None:
    """Whole and streamed."""
    model = llm(is_chat_model=True)
    print("chat      ", model.chat(QUESTION).message.content)
    print("stream    ", "|".join(chunk.delta or "" for chunk in model.stream_chat(QUESTION)))


def completion() -> None:
    """Text that goes on."""
    print("completion", llm(is_chat_model=False).complete("<|im_start|>user\nWhat does abs do?<|im_end|>\n").text)


def structured() -> None:
    """An answer of a given form: LlamaIndex asks for a call of a function."""
    model = llm(is_chat_model=True, is_function_calling_model=True)
    print("structured", model.as_structured_llm(Fact).chat(QUESTION).raw)


def embeddings() -> None:
    """Vectors of texts."""
    vectors = OpenAILikeEmbedding(model_name=model(), api_base=BASE_URL, api_key=API_KEY)
    print("embeddings", [len(vector) for vector in vectors.get_text_embedding_batch(["one", "two"])])


if __name__ == "__main__":
    for show in (chat, completion, structured, embeddings):
        show()
