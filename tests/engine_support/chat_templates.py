"""Chat templates of our own that use what the model families' templates use, one behaviour or a few in each."""

from __future__ import annotations

from typing import Any, Final

_LOOP: Final = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
_GO: Final = "{% if add_generation_prompt %}<assistant>{% endif %}"

TEMPLATES: Final[dict[str, str]] = {
    "chatml": (
        "{% for m in messages %}"
        "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        + _GO
    ),
    "default system message": (
        "{% if messages[0].role != 'system' %}<system>Be kind.\n{% endif %}"
        + _LOOP + _GO
    ),
    "system taken out of the list": (
        "{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}"
        "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{{ bos_token if loop.first }}[{{ m.role }}]{% if loop.first and s %}<<"
        "{{ s }}>>{% endif %}{{ m.content | trim }}{{ eos_token if m.role == 'assistant' }}"
        "{% endfor %}"
    ),
    "roles have to alternate": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    ),
    "no system message": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(last='', count=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = m.content %}{% set ns.count = ns.count + 1 %}{% endif %}{% endfor %}"
        "{{ ns.count }}:{{ ns.last }}"
    ),
    "break and continue": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}{{ m.content }}|{% endfor %}"
    ),
    "tools as json": (
        "{% if tools %}Tools:\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
        + _LOOP + _GO
    ),
    "tools with an indent": (
        "{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}"
        + _LOOP
    ),
    "tools with separators": (
        "{% if tools %}{{ tools | tojson(separators=(',', ':')) }}{% endif %}"
        + _LOOP
    ),
    "tools in ASCII, sorted": (
        "{% if tools %}{{ tools | tojson(ensure_ascii=True, sort_keys=True) }}{% endif %}"
        + _LOOP
    ),
    "tools before the last user's message": (
        "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% for m in messages %}{% if tools is not none and m == users[-1] %}[TOOLS]"
        "{{ tools | tojson }}[/TOOLS]{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    ),
    "tools undefined or none": (
        "{% if not tools is defined %}{% set tools = none %}{% endif %}"
        "{{ 'none' if tools is none else tools | length }}{{ documents is none }}"
    ),
    "fields of tools": (
        "{% for t in tools or [] %}{{ t.function.name }}("
        "{% for p in t.function.parameters.properties %}{{ p }}: "
        "{{ t.function.parameters.properties[p].type }}{{ ', ' if not loop.last }}{% endfor %})"
        "{% endfor %}"
    ),
    "calls": (
        "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}"
        '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% elif m.role == 'tool' %}"
        "<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    ),
    "arguments by item": (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}<{{ k }}>"
        "{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}{% endfor %}{% endfor %}"
    ),
    "arguments by dictsort": (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | dictsort }}{% endfor %}{% endfor %}"
    ),
    "responses of tools in one turn": (
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.previtem is undefined or loop.previtem.role != 'tool' %}<user>{% endif %}("
        "{{ m.content }}){% if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}</user>"
        "{% endif %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "macros": (
        "{% macro show(m, mark='-') %}{{ mark }}{{ m.role | upper }}: {{ m.content }}\n{% endmacro %}"
        "{% for m in messages %}{{ show(m) if loop.first else show(m, mark='*') }}{% endfor %}"
    ),
    "macro that calls itself": (
        "{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}"
        "{{ down(3) }}"
    ),
    "call blocks": (
        "{% macro box() %}[{{ caller() }}]{% endmacro %}{% for m in messages %}{% call box() %}"
        "{{ m.content }}{% endcall %}{% endfor %}"
    ),
    "generation blocks": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'in' %}"
        "{{ m.content }}{{ eos_token }}{% endgeneration %}{{ x | default('out') }}{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}"
    ),
    "enable_thinking": (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
        "{% endif %}{% endif %}"
    ),
    "reasoning of the last turn": (
        "{% set ns = namespace(query=-1) %}{% for m in messages[::-1] %}"
        "{% if ns.query < 0 and m.role == 'user' %}"
        "{% set ns.query = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.reasoning_content is string and loop.index0 > ns.query %}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    ),
    "reasoning as thinking": (
        "{% for m in messages %}{{ m.thinking or '' }}/{{ m.content }}{% endfor %}"
    ),
    "reasoning cut from the content": (
        "{% for m in messages %}{% set c = m.content or '' %}{% if '</think>' in c %}"
        "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ c }}{% endfor %}"
    ),
    "reasoning_effort": (
        "Effort: {{ reasoning_effort | default('medium') }}\n"
        + _LOOP
    ),
    "trimmed lines": (
        "\n  {% for m in messages %}\n    {{ m.content }}\n  {% endfor %}\n{% if true %}\n  x\n"
        "{% endif %}\n"
    ),
    "dashes": (
        "{%- for m in messages -%}\n   {{- m.content -}}  \n {%- endfor %}  \n  {{- '!' }}"
    ),
    "escapes": (
        "{{ '\\n' }}{{ \"it's\" }}{{ '\\t|\\u00e9' }}{# a comment #}{% raw %}{{ raw }}{% endraw %}"
    ),
    "filters": (
        "{{ messages | map(attribute='role') | join(',') }}|{{ messages | length }}|"
        "{{ messages[0].content | length }}|{{ messages[-1].role | title }}|"
        "{{ messages | rejectattr('role', 'in', ['system']) | list | count }}|"
        "{{ (messages | first).content | replace('e', 'E') }}|"
        "{{ messages | groupby('role') | length }}"
    ),
    "tests": (
        "{{ messages is iterable }}{{ messages[0].content is string }}{{ messages[0] is mapping }}"
        "{{ x is undefined }}{{ 3 is odd }}{{ none is none }}{{ messages[0].content is sequence }}"
    ),
    "strings": (
        "{{ messages[0].content.strip().split(' ') }}{{ messages[0].content[:3] }}"
        "{{ 'a' in messages[0].content }}{{ '%s-%d' % (messages[0].role, 5) }}"
        "{{ messages[0].role ~ 1 }}{{ messages[0].content.startswith('B') }}"
    ),
    "dates": (
        "{% if strftime_now is defined %}{{ strftime_now('%Y') | length }}{% endif %}"
        "{% set date_string = date_string if date_string is defined else '26 Jul 2024' %}"
        "{{ date_string }}"
    ),
    "documents": (
        "{% for d in documents or [] %}{{ d.title }}: {{ d.text }}\n{% endfor %}"
        + _LOOP
    ),
    "content in parts": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text if p.type == 'text' else '<' + p.type + '>' }}{% endfor %}"
        "{% endif %}{% endfor %}"
    ),
    "dict and list literals": (
        "{% set names = {'user': 'U', 'assistant': 'A'} %}{% for m in messages %}"
        "{{ names.get(m.role, '?') }}{{ [m.role, loop.index, loop.revindex] | tojson }}"
        "{{ dict(a=1) | tojson }}{% endfor %}"
    ),
    "scopes": (
        "{% set x = 1 %}{% for m in messages %}{% set x = loop.index + 1 %}{% endfor %}{{ x }}"
        "{% with y = 2 %}{{ y }}{% endwith %}{{ y is defined }}"
    ),
    "filters that fail": (
        "{{ messages | sum }}"
    ),
    "attributes out of reach": (
        "{{ messages.__class__ }}"
    ),
}  # fmt: skip

_PARAMETERS: Final = {
    "type": "object",
    "properties": {"stadt": {"type": "string", "description": "\u00dc <b>"}, "n": {"type": "integer"}},
}
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "wetter", "description": 'It\'s "fine"', "parameters": _PARAMETERS}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
_CALL: Final = {
    "id": "c1",
    "type": "function",
    "function": {"name": "wetter", "arguments": {"stadt": "K\u00f6ln", "n": [1, None]}},
}
CONVERSATIONS: Final[dict[str, dict[str, Any]]] = {
    "one turn": {"messages": [{"role": "user", "content": "Be brave, <hi> & \u4e2d \U0001f600"}]},
    "system and turns": {
        "messages": [
            {"role": "system", "content": " Be kind. "},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "<think>\nx\n</think>\n\nb"},
            {"role": "user", "content": ""},
        ]
    },
    "tools": {
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": "K\u00f6ln?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL, _CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "12"},
            {"role": "tool", "tool_call_id": "c1", "content": "13"},
            {"role": "assistant", "content": "12.", "reasoning": "Hm."},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "13.", "reasoning_content": "Well."},
        ],
    },
    "arguments": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}],
        "enable_thinking": False,
        "reasoning_effort": "high",
        "documents": [{"title": "T", "text": "D"}],
        "date_string": "today",
    },
}  # fmt: skip
