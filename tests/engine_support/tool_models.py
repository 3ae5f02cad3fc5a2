"""Model folders that know tools and reasoning: templates of our own that behave as those of the model families do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine_support.tiny_text import CONFIG, byte_level_tokenizer, write_tokenizer
from tokenizers import AddedToken

from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS, MISTRAL_MARKERS

_HERMES_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one by <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
"""
_HERMES_MESSAGES = """\
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
REASONING{{- message.content }}
{%- for call in message.tool_calls %}{% set call = call.function or call %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
"""
_REASONING = """\
{%- if message.reasoning_content and loop.last %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}"""
_THINKING_MESSAGES = _HERMES_MESSAGES.replace("REASONING", _REASONING)
QWEN25 = _HERMES_TOOLS + _HERMES_MESSAGES.replace("REASONING", "") + "{%- endif %}"
"""Tools, no reasoning."""
QWEN3 = (
    _HERMES_TOOLS
    + _THINKING_MESSAGES
    + "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    + "{%- endif %}"
)
"""Tools and reasoning that the output begins by itself."""
THINKING = _HERMES_TOOLS + _THINKING_MESSAGES + "{{- '<think>\\n' }}{%- endif %}"
"""The same begun by the prompt."""
OPENED = (
    THINKING.replace("{{- '<think>", "{% if enable_thinking %}{{- '<think>").removesuffix("{%- endif %}")
    + 2 * "{%- endif %}"
)
"""The same begun by the prompt where the request wants it, and by nothing else."""
LLAMA3 = """\
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) }}}<|im_end|>
{%- elif message.role == 'tool' %}{{- '<|im_start|>ipython\\n' + (message.content | tojson) + '<|im_end|>' }}
{%- elif loop.first and tools is not none %}
{{- '<|im_start|>' + message.role + '\\nWrite {"name": NAME, "parameters": OBJECT} after <|python_tag|> or alone.\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n' }}{% endfor %}{{- message.content + '<|im_end|>' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
SPECIAL_MARKERS = ("<tool_call>", "</tool_call>", "<|python_tag|>")
"""Tokens that ``skip_special_tokens`` leaves out; ``<think>`` is one that it does not."""
ADDED_MARKERS = ("<think>", "</think>")
MARKERS_OF_FAMILIES = (
    "<|python_start|>", "<|python_end|>", *MISTRAL_MARKERS, *DEEPSEEK_MARKERS, "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>",
)  # fmt: skip


def write_tool_model(folder: Path, template: str = QWEN3, *, markers: bool = True, **config: Any) -> Path:
    """A folder without weights. Without ``markers``, they are spelled in the usual tokens."""
    backend = byte_level_tokenizer()
    if markers:
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_MARKERS])
        backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_MARKERS])
        more = [AddedToken(token, special=True, normalized=False) for token in MARKERS_OF_FAMILIES]
        backend.add_special_tokens(more)
    write_tokenizer(folder, backend, chat_template=template)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    return folder
