"""Prints the schemas that a client library makes of the 200 pydantic models, as JSON: model → schema, or why it makes
none. Run by an interpreter that has the library: ``python client_schemas.py openai``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pydantic import BaseModel


def _openai(model: type[BaseModel]) -> Any:
    """Of ``chat.completions.parse(response_format=Model)``."""
    found: Any = import_module("openai.lib._parsing._completions").type_to_response_format_param(model)
    return found["json_schema"]["schema"]


def _instructor(model: type[BaseModel]) -> Any:
    """Of its mode ``TOOLS``; that of ``JSON_SCHEMA`` is the model's own."""
    return import_module("instructor.processing.schema").generate_openai_schema(model)["parameters"]


def _pydantic_ai(model: type[BaseModel]) -> Any:
    """Of ``NativeOutput(Model)`` and of tools with an OpenAI model: strict where the schema allows it."""
    profiles = import_module("pydantic_ai.profiles.openai")
    return profiles.OpenAIJsonSchemaTransformer(model.model_json_schema(), strict=None).walk()


MAKERS: dict[str, Callable[[type[BaseModel]], Any]] = {
    "openai": _openai,
    "instructor": _instructor,
    "pydantic_ai": _pydantic_ai,
}


def main(library: str) -> None:
    from engine_support.pydantic_models import MODELS

    made: dict[str, Any] = {}
    for name, model in MODELS.items():
        try:
            made[name] = {"schema": MAKERS[library](model)}
        except Exception as error:
            made[name] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
