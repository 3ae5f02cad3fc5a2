"""LiteLLM's proxy: a process in front of the server, without a database; the openai client talks to it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import anthropic
import openai
from case import API_KEY, BASE_URL, MODEL, Client
from pydantic import BaseModel, Field

CLIENT = Client("LiteLLM (proxy)", "litellm")
ALIAS = "through-litellm"
CONFIGURATION = {
    "model_list": [
        {
            "model_name": ALIAS,
            "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY},
        }
    ],
    "general_settings": {"master_key": "sk-local"},
}
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_DONT_SHOW_FEEDBACK_BOX": "True",
}
MESSAGES = [{"role": "user", "content": "What does len do?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 20}},
            "required": ["name"],
        },
    },
}


class Fact(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]


def _free() -> int:
    """A port below those that systems give to outgoing connections: it takes the proxy a while to listen on it."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


PORT = _free()
ROOT = f"http://127.0.0.1:{PORT}"
api = openai.OpenAI(base_url=f"{ROOT}/v1", api_key="sk-local", max_retries=0)


@contextmanager
def proxy() -> Iterator[None]:
    """The proxy from its readiness on; it has ended when this does."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(CONFIGURATION), encoding="utf-8")  # JSON is YAML
        program = Path(sys.executable).with_name("litellm")
        process = subprocess.Popen(
            [program, "--config", file, "--host", "127.0.0.1", "--port", str(PORT), "--telemetry", "False"],
            env={**os.environ, **OFFLINE},
            stdout=log,
            stderr=log,
        )
        try:
            _wait(process)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)


def _wait(process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{ROOT}/health/liveliness", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("LiteLLM's proxy did not start")


@CLIENT.case("models")
def models() -> str:
    listed = [model.id for model in api.models.list()]
    assert listed == [ALIAS], listed
    return ALIAS


@CLIENT.case("basic")
def basic() -> str:
    answer = api.chat.completions.create(model=ALIAS, messages=MESSAGES, temperature=0, max_tokens=60)
    assert "number of items" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
    return answer.choices[0].message.content


@CLIENT.case("stream")
def stream() -> str:
    sent = {"model": ALIAS, "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    chunks = list(api.chat.completions.create(**sent, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == basic()
    assert chunks[-1].usage.completion_tokens > 0
    return f"{len(chunks)} chunks: {text}"


@CLIENT.case("tools")
def tools() -> str:
    answer = api.chat.completions.create(
        model=ALIAS, messages=MESSAGES, temperature=0, max_tokens=120, tools=[TOOL], tool_choice="required"
    )
    (call,) = answer.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"name"}
    return call.function.arguments


@CLIENT.case("structured")
def structured() -> str:
    answer = api.chat.completions.parse(
        model=ALIAS, messages=MESSAGES, response_format=Fact, temperature=0, max_tokens=120
    )
    assert isinstance(answer.choices[0].message.parsed, Fact)
    return answer.choices[0].message.content


@CLIENT.case("responses")
def responses() -> str:
    with api.responses.stream(model=ALIAS, input="What does len do?", temperature=0, max_output_tokens=60) as events:
        for _ in events:
            pass
        response = events.get_final_response()
    assert "number of items" in response.output_text
    return response.output_text


@CLIENT.case("messages")
def messages() -> str:
    """Anthropic's API, which the proxy translates: the way coding agents reach other models through it."""
    with anthropic.Anthropic(base_url=ROOT, api_key="sk-local", max_retries=0) as api_:
        stream_ = api_.messages.stream(model=ALIAS, max_tokens=60, messages=MESSAGES, extra_body={"temperature": 0})
        with stream_ as events:
            text = "".join(events.text_stream)
    assert "number of items" in text
    return text


@CLIENT.case("health")
def health() -> str:
    """Its page of what it reaches: it asks the server for a short answer."""
    request = urllib.request.Request(f"{ROOT}/health", headers={"Authorization": "Bearer sk-local"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = json.load(answer)
    assert (found["healthy_count"], found["unhealthy_count"]) == (1, 0), found
    return "1 healthy"


@CLIENT.case("embeddings")
def embeddings() -> str:
    vectors = api.embeddings.create(model=ALIAS, input=["len", "sorted"], encoding_format="float")
    assert len(vectors.data) == 2
    return f"2 of {len(vectors.data[0].embedding)}"


@CLIENT.case("errors")
def errors() -> str:
    try:
        api.chat.completions.create(model=ALIAS, messages=[{"role": "user", "content": "len " * 9000}], max_tokens=5)
    except openai.BadRequestError as error:
        message = error.message
    assert "maximum context length" in message
    return message


if __name__ == "__main__":
    with proxy():
        CLIENT.main()
