"""From a conversation to the prompt's text: messages are checked, and the chat template renders them."""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, Protocol

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, alternatives, bad_request, context_exceeded
from blade_llm.api.common.response_notes import check_keys, note_unknown
from blade_llm.api.image_parts import FRAMES_KEYS, ImageParts, is_image
from blade_llm.api.images.reader import ImagePart, VideoPart
from blade_llm.api.images.serving import UNSUPPORTED, NoImages
from blade_llm.api.images.tokens import ImageTokens
from blade_llm.api.tools.messages import with_calls
from blade_llm.api.tools.use import ToolUse, template_arguments
from blade_llm.text.chat_template import RESERVED
from blade_llm.text.errors import ChatTemplateError, TemplatesBusyError

_LARGE: Final = 100_000
"""Characters from which rendering moves to a thread, as it would hold up other requests' tokens."""
_PER_MESSAGE: Final = 100
"""Cost of a message beyond its text, in characters."""

_NO_REASONING: Final = {"enable_thinking": False, "thinking": False}
"""What the templates of Qwen3 and GLM, and of DeepSeek-V3.1 and Granite, call it."""
ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles of messages → what chat templates call them: they would leave out a message of a role they do not know."""

_KEYS: Final = frozenset(
    {
        "role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning", "reasoning_content",
        "thinking", "refusal", "audio", "annotations",
    }
)  # fmt: skip
"""Of messages, those of answers that clients send back included; templates may read others."""
_WORD: Final = re.compile(r"\w+")
_MOST_READ: Final = 1_000_000
"""Characters of a template, which a request's may exceed here: it is refused when it is rendered."""
_PART_KEYS: Final = frozenset({"type", "text", "refusal", "image_url", "input_audio", "file", "video_url", "audio_url"})


class Conversation(Protocol):
    """Fields of the requests that hold messages."""

    @property
    def messages(self) -> list[dict[str, Any]] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool: ...
    @property
    def resume_response(self) -> str: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any]: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def documents(self) -> list[dict[str, str]]: ...
    @property
    def mm_processor_kwargs(self) -> dict[str, Any]: ...


class Rendered(NamedTuple):
    """A conversation as the chat template writes it."""

    text: str
    images: list[ImagePart | VideoPart]
    """In order; ``text`` has an image or video token for each, if the template has a place for it."""


async def render(context: ServerContext, chat: Conversation, tools: ToolUse | None = None) -> Rendered:
    """The prompt's text. Raises :class:`ApiError` 400, and 503 when a template of the request cannot be run now.

    Args:
        tools: what the model may call.
    """
    if not chat.messages:
        raise bad_request("messages must hold at least one message", "messages")
    if taken := RESERVED & chat.chat_template_kwargs.keys():
        raise bad_request(f"chat_template_kwargs may not set {sorted(taken)[0]!r}", "chat_template_kwargs")
    if len(chat.messages) > context.max_model_len:  # each is a token at the least
        however = f"you sent {len(chat.messages)} messages, each of which takes one at the least. Please send fewer"
        raise context_exceeded(context.max_model_len, however, "messages")
    large = _is_large(chat.messages)
    template = context.model.chat_template if chat.chat_template is None else None
    source = chat.chat_template if template is None else template.source
    images = _image_parts(context, chat)
    check = functools.partial(_checked, chat.messages, source or "", images)
    messages = await asyncio.to_thread(check) if large else check()
    mark = ""
    if chat.continue_final_message:
        _check_continued(chat)
        mark = f"|{secrets.token_hex(16)}|"
        _mark_end(messages[-1], mark)
    begin = not chat.continue_final_message if chat.add_generation_prompt is None else chat.add_generation_prompt
    defaults = context.model.default_chat_template_kwargs
    effort = _effort(chat.reasoning_effort, None if template is None else template.variables)
    arguments = {**defaults, **effort, **chat.chat_template_kwargs, **template_arguments(tools)}
    if chat.documents:
        arguments["documents"] = chat.documents
    if not isinstance(context.images, NoImages):
        refuse = functools.partial(_refuse_images_in_text, context.images.tokens, messages, arguments, chat)
        await asyncio.to_thread(refuse) if large else refuse()
    text = await _render(context, chat.chat_template, messages, begin, arguments, large=large)
    if mark:
        before, found, _ = text.rpartition(mark)
        if not found:
            raise bad_request("the chat template leaves out the last message's text", "continue_final_message")
        text = before
    return Rendered(text + chat.resume_response, images.found)


def _image_parts(context: ServerContext, chat: Conversation) -> ImageParts:
    """What takes the images of ``chat``, or refuses them."""
    if isinstance(context.images, NoImages):
        return ImageParts(context.images.reason)
    reader = context.images
    videos = None if reader.video is None else reader.most_videos
    return ImageParts("", reader.most, chat.mm_processor_kwargs, videos, reader.most_frames)


def _refuse_images_in_text(
    tokens: ImageTokens, messages: list[dict[str, Any]], arguments: Mapping[str, Any], chat: Conversation
) -> None:
    """Text that stands for an image would put the images of the conversation into other places; templates write the
    parts of a message without anything between them."""
    several = (message["content"] for message in messages if isinstance(message["content"], list))
    joined = ["".join(part.get("text", "") for part in parts) for parts in several]
    if (found := tokens.found_in([*messages, *joined, arguments, chat.resume_response])) is not None:
        message = f"messages or tools have {found!r} in their text, which stands for an image or a video; leave it out"
        raise bad_request(message, "messages", "invalid_prompt")


def _mark_end(message: dict[str, Any], mark: str) -> None:
    """Put ``mark`` after the last text of a message."""
    content = message["content"]
    if not isinstance(content, list):
        message["content"] += mark
    elif "text" in content[-1]:
        content[-1]["text"] += mark
    else:
        problem = "continue_final_message goes on with a text, but the last message ends with an image or a video"
        raise bad_request(problem, "continue_final_message")


async def _render(
    context: ServerContext,
    source: str | None,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
    arguments: dict[str, Any],
    *,
    large: bool,
) -> str:
    if source is not None:
        try:
            return await context.templates.render(
                source,
                context.model.tokenizer.special_tokens,
                messages,
                add_generation_prompt=add_generation_prompt,
                arguments=arguments,
            )
        except ChatTemplateError as error:
            raise bad_request(str(error), "chat_template") from None
        except TemplatesBusyError as error:
            raise ApiError(503, str(error), kind="overloaded_error", headers={"retry-after": "2"}) from None
    template = context.model.chat_template
    if template is None:
        raise bad_request(
            "this model has no chat template; start the server with --chat_template FILE, send chat_template, "
            "or use /v1/completions",
            "messages",
        )
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "arguments": arguments}
    try:
        if large:
            return await asyncio.to_thread(template.render, messages, **options)
        return template.render(messages, **options)
    except ChatTemplateError as error:
        raise bad_request(str(error), "messages") from None


def _effort(effort: str | None, variables: Collection[str] | None) -> dict[str, Any]:
    """Template arguments for ``reasoning_effort``: itself, and for ``none`` the switches of templates that have one.

    Args:
        variables: what the template reads; None: that is not known, and what it does not read is harmless.
    """
    if effort is None:
        return {}
    wished = {"reasoning_effort": effort, **(_NO_REASONING if effort == "none" else {})}
    return {name: value for name, value in wished.items() if variables is None or name in variables}


def _is_large(messages: list[dict[str, Any]]) -> bool:
    size = 0
    for message in messages:
        content = message.get("content")
        size += _PER_MESSAGE
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            size += len(text) if isinstance(text, str) else 1
        if size > _LARGE:
            return True
    return False


def _checked(messages: list[dict[str, Any]], template: str, images: ImageParts) -> list[dict[str, Any]]:
    words: set[str] | None = None
    for message in messages:
        for name in message:
            if name in _KEYS:
                continue
            if words is None:  # once: a client's keys may be many, and templates are long
                words = {*_WORD.findall(template, 0, _MOST_READ)}
            if not words.issuperset(_WORD.findall(name) or [name]):  # a template has keys of messages as words
                note_unknown(name, _KEYS, "messages[]")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                keys = _PART_KEYS | FRAMES_KEYS if part.get("type") == "video" else _PART_KEYS
                check_keys(part, keys, "messages[].content[]")
    return [checked_message(message, index, images) for index, message in enumerate(messages)]


def _check_continued(chat: Conversation) -> None:
    if chat.add_generation_prompt:
        raise bad_request(
            "continue_final_message and add_generation_prompt contradict each other; send one", "continue_final_message"
        )
    if chat.resume_response:
        raise bad_request("continue_final_message and resume_response both go on; send one", "resume_response")


def checked_message(message: Mapping[str, Any], index: int, images: ImageParts | None = None) -> dict[str, Any]:
    """Checked, with a role that templates know, and with content parts joined to one string; where one of them is an
    image they stay apart. ``images``: takes these; None: they are refused."""
    where = f"messages[{index}]"
    role = message.get("role")
    if role == "function":
        raise bad_request(
            f"{where}: role function is the older form of role tool; send that", "messages", "unsupported"
        )
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"{where}.role must be {alternatives([*ROLES])}", "messages")
    content: str | list[dict[str, str]]
    if any(map(is_image, parts := _parts_of(message))):
        images = images or ImageParts()
        content = [
            images.take(part, place, role) if is_image(part) else {"type": "text", "text": _part(part, place, False)}
            for part, place in zip(parts, _places(parts, where), strict=True)
        ]
    else:
        content = content_of(message, where)
    return with_calls({**message, "role": ROLES[role], "content": content}, where)


def content_of(message: Mapping[str, Any], where: str = "messages[-1]") -> str:
    """The text of a message, that of its parts joined; images are left out. Raises :class:`ApiError` 400."""
    content, by_model = message.get("content"), message.get("role") == "assistant"
    if isinstance(content, list):
        return "\n".join(
            _part(part, place, by_model)
            for part, place in zip(content, _places(content, where), strict=True)
            if not is_image(part)
        )
    if content is None and by_model:
        return ""
    if not isinstance(content, str):
        raise bad_request(f"{where}.content must be a string or a list of text parts", "messages")
    return content


def _parts_of(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _places(parts: list[Any], where: str) -> list[str]:
    return [f"{where}.content[{index}]" for index in range(len(parts))]


def _part(part: Any, where: str, by_model: bool) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    for name in ("text", "refusal") if by_model else ("text",):
        if kind == name and isinstance(part.get(name), str):
            return str(part[name])
    if kind in ("input_audio", "file", "audio_url"):
        raise bad_request(f"{where}: {kind} {UNSUPPORTED}", "messages", "unsupported")
    raise bad_request(f'{where} must be {{"type": "text", "text": …}}', "messages")
