"""The demo model's chat template: ChatML, tools in the Hermes form, reasoning between `<think>` and `</think>`.

Without tools, calls and reasoning a conversation is rendered as plain ChatML. Functions are shown in the system
message, between `<tools>` and `</tools>`; a call is `<tool_call>`, a JSON object with `name` and `arguments`,
`</tool_call>`; its result stands in a user turn between `<tool_response>` and `</tool_response>`. So Hermes 2, Qwen2.5
and Qwen3 write them. With `enable_thinking` the prompt opens the reasoning; else nothing is added, and the model does
not think. Reasoning from before the user's last message is left out.
"""

CALL_BEGIN, CALL_END = "<tool_call>\n", "\n</tool_call>"
THINK_BEGIN, THINK_END = "<think>\n", "\n</think>\n\n"

CHAT_TEMPLATE = r"""
{%- set found = namespace(asked=-1, first=0) -%}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}{%- set found.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
    {{- '<|im_start|>system\n' -}}
    {%- if messages and messages[0]['role'] == 'system' -%}
        {%- set found.first = 1 -%}
        {{- messages[0]['content'] + '\n\n' -}}
    {%- endif -%}
    {{- '# Tools\n\nYou may call these functions:\n<tools>\n' -}}
    {%- for tool in tools -%}
        {{- tool | tojson + '\n' -}}
    {%- endfor -%}
    {{- '</tools>\n\nTo call one, write its name and arguments as JSON:\n<tool_call>\n' -}}
    {{- '{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if loop.index0 >= found.first -%}
        {%- set content = message['content'] or '' -%}
        {%- if message['role'] == 'tool' -%}
            {%- if loop.first or loop.previtem['role'] != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
            {{- '\n<tool_response>\n' + content + '\n</tool_response>' -}}
            {%- if loop.last or loop.nextitem['role'] != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
        {%- else -%}
            {{- '<|im_start|>' + message['role'] + '\n' -}}
            {%- if message['role'] == 'assistant' and message['reasoning_content'] and loop.index0 > found.asked -%}
                {{- '<think>\n' + message['reasoning_content'] + '\n</think>\n\n' -}}
            {%- endif -%}
            {{- content -}}
            {%- for call in message['tool_calls'] or [] -%}
                {%- if content or not loop.first -%}{{- '\n' -}}{%- endif -%}
                {{- '<tool_call>\n{"name": ' + call['function']['name'] | tojson + ', "arguments": ' -}}
                {%- if call['function']['arguments'] is string -%}
                    {{- call['function']['arguments'] -}}
                {%- else -%}
                    {{- call['function']['arguments'] | tojson -}}
                {%- endif -%}
                {{- '}\n</tool_call>' -}}
            {%- endfor -%}
            {{- '<|im_end|>\n' -}}
        {%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if enable_thinking -%}{{- '<think>\n' -}}{%- endif -%}
{%- endif -%}
""".strip()
