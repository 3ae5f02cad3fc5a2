"""From flags and environment to the engine's configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blade_llm.cli.server import _engine_config
from blade_llm.cli.server_flags import GROUPS, text_fields
from blade_protocol import environment

MODEL: Any = SimpleNamespace(names=("m",), tokenizer=SimpleNamespace(eos_token_id=None))


def flags(**given: object) -> dict[str, Any]:
    """All flags, with their defaults but for those given."""
    return {flag.name: flag.default for group in GROUPS.values() for flag in group} | given


def test_a_server_bounds_what_one_client_may_take() -> None:
    config = _engine_config(flags(), Path("m"), MODEL)
    assert (config.max_waiting_requests, config.share_slots, config.allow_client_priority) == (2048, True, False)
    assert _engine_config(flags(max_waiting_requests=5), Path("m"), MODEL).max_waiting_requests == 5


def test_sizes_of_graphs_reach_the_engine() -> None:
    config = _engine_config(flags(cuda_graph_max_tokens=0, cuda_graph_batch_sizes=[1, 8]), Path("m"), MODEL)
    assert (config.cuda_graph_max_tokens, config.cuda_graph_batch_sizes) == (0, (1, 8))
    config = _engine_config(flags(cuda_graph_token_sizes=[64, 256]), Path("m"), MODEL)
    assert (config.cuda_graph_token_sizes, config.cuda_graph_batch_sizes) == ((64, 256), None)


def test_where_all_steps_have_prompt_outputs_no_mixed_graphs_are_captured() -> None:
    config = _engine_config(
        flags(task="embed", cuda_graph_token_sizes=[64], cuda_graph_batch_sizes=[8]), Path("m"), MODEL
    )
    assert (config.cuda_graph_max_tokens, config.cuda_graph_token_sizes) == (0, None)
    assert config.cuda_graph_batch_sizes == (8,)
    assert _engine_config(flags(), Path("m"), MODEL).cuda_graph_max_tokens is None


@pytest.mark.parametrize(("flag", "variable"), [(True, None), (False, "1")])
def test_priorities_are_taken_where_a_flag_or_the_operator_says_so(
    monkeypatch: pytest.MonkeyPatch, flag: bool, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(environment.ALLOW_CLIENT_PRIORITY, variable)
    assert _engine_config(flags(allow_client_priority=flag), Path("m"), MODEL).allow_client_priority


def test_special_tokens_reach_the_text_side() -> None:
    fields = text_fields(flags(tokenizer_special_tokens=["<a>", "eos_token=<b>"]))
    assert fields["tokenizer_special_tokens"] == ("<a>", "eos_token=<b>")
    assert text_fields(flags())["tokenizer_special_tokens"] == ()


def test_custom_allreduce_reaches_the_engine() -> None:
    assert _engine_config(flags(enable_custom_allreduce=True), Path("m"), MODEL).enable_custom_allreduce
    assert not _engine_config(flags(), Path("m"), MODEL).enable_custom_allreduce


def test_triton_mla_reaches_the_engine() -> None:
    assert _engine_config(flags(enable_triton_mla=True), Path("m"), MODEL).enable_triton_mla
    assert not _engine_config(flags(), Path("m"), MODEL).enable_triton_mla
