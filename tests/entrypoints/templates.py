"""Chat templates in the styles of well-known model families, and conversations to render."""

# ruff: noqa: E501

from typing import Any

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- set date = strftime_now("%Y") if strftime_now is defined else "2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nYear: " + date + "\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

STRICT = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if loop.index0 == 0 and system_message %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}
"""

TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

THINKING = """\
{%- set ns = namespace(last_query=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = messages|length - 1 - loop.index0 %}
    {%- if not ns.found and message.role == 'user' %}
        {%- set ns.found = true %}{%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {%- set content = '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

TAGGED = """\
{% for message in messages %}{% if message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] \
+ '<|end|>\\n'}}{% elif message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] \
+ '<|end|>\\n'}}{% else %}{{'<|assistant|>\\n'}}{% generation %}{{ message['content'] \
+ '<|end|>\\n'}}{% endgeneration %}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}
"""

FEATURES = """\
{%- macro show(message, depth=0) -%}
{{ message.role|upper }}{{ ' (' ~ message.name ~ ')' if message.name }}: {{ message.content|tojson }}
{%- endmacro -%}
{%- for message in messages if message.role != 'tool' -%}
{%- if message.content == 'skip' -%}{%- continue -%}{%- endif -%}
{{ loop.index }}/{{ loop.length }} {{ show(message) }}
{%- if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{{ call.function.name }}({% for key, value in call.function.arguments|items -%}
{{ key }}={{ value|tojson }}{{ ', ' if not loop.last }}{%- endfor %})
{%- endfor -%}
{%- endif -%}
{{ '\\n' if not loop.last }}
{%- endfor -%}
{%- if documents %}{{ documents|map(attribute='title')|join(', ')|indent(2) }}{%- endif -%}
{{ {'a': [1, 2.5, none, true], 'ü': '<é>'}|tojson(indent=2) }}{{ '%s-%d' % ('x', 7) }}
{{ [3, 1, 2]|sort|first }}{{ 'a,b'.split(',')|last }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ 'ab' * 2 }}
{{ range(3)|list }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ style|default('-') }}
"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "strict": STRICT,
    "turns": TURNS,
    "thinking": THINKING,
    "tagged": TAGGED,
    "features": FEATURES,
}

SPECIAL_TOKENS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>",
    "<|end|>",
]  # fmt: skip


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [message("user", "What is the capital of France?")],
    "system": [message("system", " Be brief.\n"), message("user", "  Hi  ")],
    "turns": [
        message("system", "Être bref. 🌶"),
        message("user", "Hi"),
        message("assistant", "<think>\nhm\n</think>\n\nHello 'you' & \"me\""),
        message("user", "{{ 7 * 7 }} {% raw %}"),
    ],
    "empty": [message("user", "a"), message("assistant", ""), message("user", "b\n")],
    "last": [message("user", "Write a poem"), message("assistant", "Roses are red, ")],
    "twice": [message("system", "s"), message("user", "a"), message("user", "b")],
    "tool first": [message("tool", "7"), message("user", "b")],
    "names": [message("user", "hello", name="Ann"), message("assistant", "skip")],
}
