"""pydantic-ai: an agent with a tool, and one with a typed result, over chat completions and over responses."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from server import API_KEY, BASE_URL, model


class Fact(BaseModel):
    """A fact about Python. A schema that allows nothing else, and bounded texts, end with any model."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    useful: bool


def talk(kind: type[OpenAIChatModel] | type[OpenAIResponsesModel]) -> None:
    """Text, text with a tool at hand, and a result that fits a schema."""
    served: Model = kind(model(), provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
    plain = Agent(served, instructions="You are a helpful assistant.", model_settings={"temperature": 0})
    print("text  ", plain.run_sync("What does len do?").output)

    with_tool = Agent(served, model_settings={"temperature": 0, "max_tokens": 200})

    @with_tool.tool_plain
    def lookup(name: str) -> str:
        """Look a built-in function up in Python's documentation."""
        return f"{name} is documented"

    print("tool  ", with_tool.run_sync("What does len do?").output)
    typed = Agent(served, output_type=NativeOutput(Fact), model_settings={"temperature": 0, "max_tokens": 200})
    print("typed ", typed.run_sync("What does len do?").output)


if __name__ == "__main__":
    for api in (OpenAIChatModel, OpenAIResponsesModel):
        print(api.__name__)
        talk(api)
