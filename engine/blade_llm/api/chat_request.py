"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from blade_llm.api.generation.requests import GenerationFields, Natural, ReasoningEffort, TopLogprobs
from blade_llm.api.tools.requests import Tool, ToolChoice


class ChatRequest(GenerationFields, msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``"""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    """Texts, or lists of parts: texts, and images and videos where the model takes any."""
    max_completion_tokens: Natural | None = None
    """Newer name of ``max_tokens``; wins over it."""
    logprobs: bool = False
    """Include each token's log-probability."""
    top_logprobs: TopLogprobs | None = None
    """Number of most likely tokens whose log-probabilities are returned too."""
    add_generation_prompt: bool | None = None
    """Let the template begin the assistant's turn; true unless ``continue_final_message``."""
    continue_final_message: bool = False
    """Go on within the last message."""
    resume_response: str = ""
    """Text that was generated already: put after the prompt, not repeated."""
    chat_template: str | None = None
    """A chat template in place of the model's."""
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments for the chat template, e.g. ``{"enable_thinking": false}``."""
    reasoning_effort: ReasoningEffort | None = None
    """For templates that know it; ``none`` switches the reasoning off where the template can."""
    documents: list[dict[str, str]] = []
    """For templates that know of documents: ``{"title": …, "text": …}``."""
    mm_processor_kwargs: dict[str, Any] = {}
    """vLLM's: ``min_pixels`` and ``max_pixels`` of images and videos that do not say it themselves."""
    tools: list[Tool] = []
    """Functions the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether it may, or must, or which one; ``auto`` when left out."""
    parallel_tool_calls: bool = True
    """An output may hold several calls."""
    echo: bool = False
    """Begin the output with the last message, if that is the assistant's: with ``continue_final_message``."""
    return_prompt_text: bool = False
    """Return the rendered conversation as ``prompt_text``, in a stream with the first chunk."""
    include_reasoning: bool = True
    """Show the reasoning of a model that thinks."""

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
