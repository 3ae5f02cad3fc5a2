"""``POST /v1/responses``, OpenAI's newer form of a chat: typed items in and out, and events that name themselves.

A request is turned into the chat request that means the same, so every feature of chat completions is one of responses
too; the output's text, reasoning and tool calls become items. Responses are kept for a while, to go on from.
"""
