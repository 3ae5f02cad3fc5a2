"""Answers of a given form: a pydantic model, a JSON schema, and what goes beyond OpenAI's API."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from server import client, model


class Fact(BaseModel):
    """What the model shall fill in. A schema that allows nothing else, and bounded texts, end with any model."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    kind: Literal["function", "method", "statement", "module"]
    useful: bool


MESSAGES = [{"role": "user", "content": "What does len do?"}]


def main() -> None:
    openai, name = client(), model()

    parsed = openai.chat.completions.parse(model=name, messages=MESSAGES, response_format=Fact, max_tokens=400)  # type: ignore[arg-type]
    print("chat, pydantic   ", parsed.choices[0].message.parsed)

    response = openai.responses.parse(model=name, input="What does len do?", text_format=Fact, max_output_tokens=400)
    print("responses        ", response.output_parsed)

    schema = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4}
    answer = openai.chat.completions.create(
        model=name,
        messages=MESSAGES,  # type: ignore[arg-type]
        response_format={"type": "json_schema", "json_schema": {"name": "colours", "schema": schema}},  # type: ignore[arg-type]
        max_tokens=100,
    )
    print("schema           ", json.loads(answer.choices[0].message.content or ""))

    for title, form in (
        ("guided_choice    ", {"guided_choice": ["yes", "no"]}),
        ("guided_regex     ", {"guided_regex": r"\d{4}-\d{2}-\d{2}"}),
        ("structured_output", {"structured_outputs": {"regex": "v[0-9]\\.[0-9]"}}),
    ):
        answer = openai.chat.completions.create(model=name, messages=MESSAGES, extra_body=form, max_tokens=20)  # type: ignore[arg-type]
        print(title, answer.choices[0].message.content)


if __name__ == "__main__":
    main()
