"""The process that renders chat templates of requests: ``python -m blade_llm.text.template_process``.

A template may loop for ever or build a text of gigabytes, which no sandbox inside a process prevents. So this one has
little memory, opens no files, and a SIGALRM ends it when a template takes too long.

It reads and writes messages with a four-byte length, in msgpack; the first one it writes is empty and says that it
is ready. It exits at end of file.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import signal
import sys
from typing import Any, Final

import msgspec

from blade_llm.text.chat_template import ChatTemplate
from blade_llm.text.errors import ChatTemplateError, TokenizerFilesError

SECONDS: Final = 2.0
"""Time limit to compile and render one template."""
MAX_CHARACTERS: Final = 4_000_000
"""Most characters of the rendered text."""
_MEMORY: Final = 512 * 1024 * 1024
_OPEN_FILES: Final = 3
LENGTH_BYTES: Final = 4


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One conversation to render."""

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    arguments: dict[str, Any]


class Rendered(msgspec.Struct, frozen=True, array_like=True):
    """The rendered text, or the error."""

    text: str = ""
    error: str = ""


def render(job: Job) -> Rendered:
    """Compile and render, whatever comes."""
    try:
        template = _compiled(job.source, tuple(job.special_tokens.items()))
        text = template.render(job.messages, add_generation_prompt=job.add_generation_prompt, arguments=job.arguments)
    except (ChatTemplateError, TokenizerFilesError) as error:
        return Rendered(error=str(error))
    except MemoryError:
        return Rendered(error="the chat template needs too much memory")
    except Exception as error:  # a program from a request: whatever it raises is its fault
        return Rendered(error=f"the chat template cannot be used: {type(error).__name__}: {error}")
    if len(text) > MAX_CHARACTERS:
        return Rendered(error=f"the chat template makes a text of more than {MAX_CHARACTERS} characters")
    return Rendered(text=text)


@functools.lru_cache(maxsize=8)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))


def _limit() -> None:
    for source in ("{{ messages[0].x }}{{ strftime_now('%Y') }}", "{{ raise_exception('') }}", "{% if %}"):
        render(Job(source, {}, [{"x": 1}], True, {}))  # loads what is loaded late
    _compiled.cache_clear()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our input's end is our end


def _encode(result: Rendered) -> bytes:
    try:
        return msgspec.msgpack.encode(result)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(Rendered(error="the chat template makes a text that is not Unicode"))


def main() -> None:
    _limit()
    read, write = sys.stdin.buffer, sys.stdout.buffer
    write.write(bytes(LENGTH_BYTES))
    write.flush()
    decoder = msgspec.msgpack.Decoder(Job)
    while len(head := read.read(LENGTH_BYTES)) == LENGTH_BYTES:
        data = read.read(int.from_bytes(head, "little"))
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            result = render(decoder.decode(data))
        except (msgspec.DecodeError, RecursionError, MemoryError) as error:
            result = Rendered(error=f"the conversation cannot be put into a template of a request: {error}")
        payload = _encode(result)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write.write(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)
        write.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
