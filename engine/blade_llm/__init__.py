"""BladeLLM: serve and run large language models.

``LLM`` and ``SamplingParams`` are imported when first used: API-server processes do not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blade_llm.llm import LLM, CompletionOutput, LoRARequest, RequestOutput
    from blade_llm.sampling.parameters import SamplingParams

__all__ = ["LLM", "CompletionOutput", "LoRARequest", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "SamplingParams":
        from blade_llm.sampling.parameters import SamplingParams

        return SamplingParams
    if name in __all__:
        from blade_llm import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
