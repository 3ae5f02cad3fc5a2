"""The shared vocabulary stays light and its messages survive the wire."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from blade_protocol.check import CheckItem, CheckReport
from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_protocol.state import EngineState, MemoryPlan


def test_importing_the_protocol_pulls_in_only_msgspec_and_the_standard_library() -> None:
    code = (
        "import pkgutil, importlib, sys, blade_protocol\n"
        "for m in pkgutil.iter_modules(blade_protocol.__path__): importlib.import_module('blade_protocol.' + m.name)\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'__mp_main__'}))"
    )
    run = subprocess.run([sys.executable, "-S", "-c", _with_path(code)], capture_output=True, text=True, check=True)
    third_party = {name for name in run.stdout.split() if not name.startswith(("_", "sitecustomize"))}
    assert third_party - {"typing_extensions"} == {"blade_protocol", "msgspec"}  # msgspec uses it where installed


def _with_path(code: str) -> str:
    return f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{code}"


STATE = EngineState(
    model="m",
    revision="r",
    ready=True,
    draining=False,
    running=1,
    waiting=2,
    kv_blocks_total=10,
    kv_blocks_free=3,
    prompt_tokens_total=5,
    cached_tokens_total=4,
    generation_tokens_total=3,
    preemptions_total=0,
    epoch="e",
    sequence=7,
    memory=MemoryPlan(
        weights=1,
        activation_peak=2,
        kv_cache=3,
        kv_block_bytes=4,
        kv_blocks=5,
        kv_tokens=80,
        max_model_len=16,
        concurrent_at_max_len=5.0,
    ),
)


@pytest.mark.parametrize(
    "message",
    [
        STATE,
        CheckReport(passed=1, warnings=0, failed=0, items=(CheckItem(name="a", status="PASS", detail="b"),)),
        RouterConfig(endpoints=(EndpointConfig(url="http://127.0.0.1:1"),), policy="least-request"),
    ],
)
def test_messages_survive_json(message: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


def test_a_misspelt_router_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="polcy"):
        msgspec.json.decode(b'{"polcy": "auto"}', type=RouterConfig)
