"""The ``response`` object: fields of the request, output, usage."""

from __future__ import annotations

import time
from typing import Any

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.responses.functions import echoed_tools
from blade_llm.api.responses.output import Output
from blade_llm.api.responses.requests import ResponsesRequest
from blade_llm.sampling.parameters import SamplingParams


class Envelope:
    """Writes the object; what does not change is made once."""

    def __init__(
        self,
        response_id: str,
        model: str,
        request: ResponsesRequest,
        sampling: SamplingParams,
        created: int | None = None,
        *,
        stored: bool = False,
    ) -> None:
        reasoning = request.reasoning
        created = int(time.time()) if created is None else created
        self._head = {"id": response_id, "object": "response", "created_at": created}
        self._echo = {
            "background": False,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata,
            "model": model,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": stored,
            "temperature": sampling.temperature,
            "text": {"format": request.text.format, "verbosity": request.text.verbosity},
            "tool_choice": request.tool_choice,
            "tools": echoed_tools(request),
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 0.0 if request.top_p == 0 else sampling.top_p,
            "truncation": request.truncation,
            "user": request.user,
        }

    def begun(self) -> dict[str, Any]:
        """Before there is output."""
        return self._body("in_progress", [], None)

    def ended(self, output: Output, result: GenerationResult) -> dict[str, Any]:
        """``completed``, or ``incomplete`` when the number of tokens ended it."""
        usage = _usage(result)
        if output.finish_reason == "length":
            return self._body("incomplete", output.items, usage, incomplete={"reason": "max_output_tokens"})
        return self._body("completed", output.items, usage)

    def failed(self, output: Output, error: ApiError) -> dict[str, Any]:
        """After an error in mid-stream."""
        return self._body("failed", output.items, None, error={"code": "server_error", "message": error.detail.message})

    def _body(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None,
        *,
        error: dict[str, Any] | None = None,
        incomplete: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": incomplete,
            **self._echo,
            "output": output,
            "usage": usage,
        }


def _usage(result: GenerationResult) -> dict[str, Any]:
    """A chat's usage in the words of a response."""
    usage: dict[str, Any] = result.usage()
    thought = {"reasoning_tokens": usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": thought,
        "total_tokens": usage["total_tokens"],
    }
