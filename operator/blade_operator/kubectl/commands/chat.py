"""``chat``: a conversation with a service, streamed; or one question, from the command line or standard input.

On a cluster the requests go through a port-forward to a router that is ready.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from blade_operator.cli.errors import CommandError
from blade_operator.cli.prompt import API_KEY, api_key
from blade_operator.command_line import safe
from blade_operator.kubectl.output import warn
from blade_operator.kubectl.places.choice import open_place
from blade_operator.kubectl.places.place import Place, Reached
from blade_operator.kubectl.pods import namespace_of, ready_router, the_service
from blade_operator.model.objects import Object
from blade_protocol.paths import CHAT_COMPLETIONS, MODELS

_HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /exit or Ctrl-D ends"
_CONNECT_SECONDS = 10.0


def run(options: argparse.Namespace) -> int:
    """Talk until the end of the input; with a prompt, print its answer."""
    with open_place(options) as place, contextlib.ExitStack() as stack:
        if options.object and options.prompt is None and any(map(str.isspace, options.object)):
            options.object, options.prompt = None, options.object  # a question without the name of the only service
        service = the_service(place, namespace_of(options, place), options.object)
        if (task := service["spec"].get("engine", {}).get("task", "generate")) != "generate":
            raise CommandError(f"{service['metadata']['name']} does not generate text (spec.engine.task is {task})")
        client, reached = stack.enter_context(connect(place, service, options.timeout))
        chat = Chat(client, reached, _first_model(client, reached, options), options)
        if options.prompt is not None:
            chat.ask(options.prompt)
        elif not sys.stdin.isatty():
            if not (text := sys.stdin.read().strip()):
                raise CommandError("there is nothing on standard input to ask")
            chat.ask(text)
        else:
            _converse(chat, service)
    return 0


@contextlib.contextmanager
def connect(place: Place, service: Object, timeout: float) -> Iterator[tuple[httpx.Client, Reached]]:
    """An HTTP client for a router of ``service``, with the API key of the environment where the service has keys.

    Through a port-forward a certificate is not verified: the API server vouches for the pod, and the certificate is for
    another name. ``timeout``: seconds without a byte.
    """
    router = service["spec"].get("router", {})
    secure = bool(router.get("tls"))
    key = api_key() if router.get("auth") else None
    verify: ssl.SSLContext | bool = ssl.create_default_context() if secure and place.local else False
    with place.reach(ready_router(place, service), "http") as reached:
        base = f"{'https' if secure else 'http'}://{reached.authority}"
        url = str(service.get("status", {}).get("url", ""))
        if secure and place.local and url:
            base = url.removesuffix("/v1")
        with httpx.Client(
            base_url=base,
            timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
            trust_env=False,
            headers={"authorization": f"Bearer {key}"} if key else {},
            verify=verify,
        ) as client:
            yield client, reached


def _first_model(client: httpx.Client, reached: Reached, options: argparse.Namespace) -> str:
    if options.adapter or options.model:
        return str(options.adapter or options.model)
    with _errors(reached):
        response = client.get(MODELS)
        _require_success(response.status_code, response.text)
        models = response.json().get("data") or []
    if not models:
        raise CommandError("the service lists no models yet; name one with --model")
    return str(models[0]["id"])


class Chat:
    """A conversation."""

    def __init__(self, client: httpx.Client, reached: Reached, model: str, options: argparse.Namespace) -> None:
        self._client = client
        self._reached = reached
        self.model = model
        self.messages: list[dict[str, str]] = []
        self._options = options
        self.set_system(options.system)

    def set_system(self, text: str | None) -> None:
        """Begin anew, with this system prompt."""
        self._system = text
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, prompt: str) -> None:
        """Print the answer as it comes; then it is part of the conversation, as far as it came.

        Raises:
            CommandError: the service did not respond properly.
        """
        self.messages.append({"role": "user", "content": prompt})
        answer = list[str]()
        began, first, tokens = time.monotonic(), 0.0, 0
        try:
            for text, count in self._stream():
                tokens = count or tokens
                if text:
                    first = first or time.monotonic()
                    answer.append(text)
                    sys.stdout.write(safe(text))
                    sys.stdout.flush()
        except (CommandError, KeyboardInterrupt):
            if not answer:
                self.messages.pop()
            raise
        finally:
            if answer:
                sys.stdout.write("\n")
                sys.stdout.flush()
                self.messages.append({"role": "assistant", "content": "".join(answer)})
        if sys.stderr.isatty() and first:
            span = time.monotonic() - first
            speed = f", {(tokens - 1) / span:.0f} tokens/s" if tokens > 1 and span > 0 else ""
            warn(f"({tokens} tokens, the first after {(first - began) * 1000:.0f} ms{speed})")

    def _stream(self) -> Iterator[tuple[str, int]]:
        """Pieces of the answer, and how many tokens it has by then, where that is known."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        wanted = {"max_tokens": self._options.max_tokens, "temperature": self._options.temperature}
        body |= {name: value for name, value in wanted.items() if value is not None}
        with _errors(self._reached), self._client.stream("POST", CHAT_COMPLETIONS, json=body) as response:
            if not response.is_success:
                _require_success(response.status_code, response.read().decode(errors="replace"))
            done = False
            for line in response.iter_lines():  # to its end, for who leaves before counts as one that was aborted
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise CommandError(f"the answer broke off: {chunk['error'].get('message', chunk['error'])}")
                    yield _text(chunk), (chunk.get("usage") or {}).get("completion_tokens", 0)
            if not done:
                raise CommandError(
                    f"the answer broke off{': ' if self._reached.problem else ''}{self._reached.problem}"
                )


def _text(chunk: dict[str, Any]) -> str:
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
    return "".join((delta.get("reasoning_content") or "") + (delta.get("content") or "") for delta in deltas)


@contextlib.contextmanager
def _errors(reached: Reached) -> Iterator[None]:
    """What HTTP says went wrong as a `CommandError`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise CommandError("the service did not answer in time; --timeout SECONDS waits longer") from error
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        raise CommandError(f"the service did not answer: {reached.problem or error or type(error).__name__}") from error


def _require_success(status: int, text: str) -> None:
    if status < httpx.codes.BAD_REQUEST:
        return
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    hint = f"; set {API_KEY} to one of its keys" if status == httpx.codes.UNAUTHORIZED else ""
    raise CommandError(f"the service answered {status}: {text[:2000]}{hint}")


def _converse(chat: Chat, service: Object) -> None:
    """Read prompts from the terminal and print answers, until Ctrl-D. Ctrl-C stops an answer."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - `input` edits lines and remembers them once it is there
    warn(f"{service['metadata']['name']}, model {chat.model}. {_HELP}.")
    commands: dict[str, Callable[[str], None]] = {
        "/reset": lambda _: chat.reset(),
        "/system": chat.set_system,
        "/help": lambda _: warn(_HELP),
    }
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit"):
            return
        if word in commands:
            commands[word](rest.strip())
        elif word.startswith("/"):
            warn(f"there is no {word}: {_HELP}")
        elif line:
            try:
                chat.ask(line)
            except CommandError as error:
                warn(f"error: {error}")
            except KeyboardInterrupt:
                warn("(stopped)")
