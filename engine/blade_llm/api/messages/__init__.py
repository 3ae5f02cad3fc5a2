"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's form of a chat.

A request is turned into the chat request that means the same, so chat template, sampling, tools and structured output
are those of chat completions; the output's reasoning, text and calls become content blocks. The reference is
https://docs.anthropic.com/en/api/messages.
"""
