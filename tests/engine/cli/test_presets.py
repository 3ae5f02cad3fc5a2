"""`--preset`: what each sets, that a given flag wins, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blade_llm.cli import check, fit, server
from blade_llm.cli.flags import Flag, FlagParser, byte_size
from blade_llm.cli.presets import PRESETS, apply_preset
from blade_llm.cli.server_flags import GROUPS, MEMORY_FIELDS, memory_fields
from blade_llm.cli.vllm_flags import ServerFlagParser

FLAGS = {flag.name: flag for flags in GROUPS.values() for flag in flags}


def parse(*argv: str) -> tuple[dict[str, Any], frozenset[str]]:
    parser = ServerFlagParser("blade_llm_server")
    return parser.parse(["model", *argv]), parser.given


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_a_user_could(name: str) -> None:
    """Each value is one that the flag takes, and is not what it has anyway."""
    flags, given = parse("--preset", name)
    said = apply_preset(flags, given)
    words = [word for flag, value in PRESETS[name].flags.items() for word in (f"--{flag}", str(value).lower())]
    written, _ = parse(*words)
    assert {**flags, "preset": None} == written
    for flag, value in PRESETS[name].flags.items():
        assert value != FLAGS[flag].default, flag
        assert f"--{flag}" in (said or "")


def test_without_one_nothing_is_set() -> None:
    flags, given = parse()
    before = dict(flags)
    assert apply_preset(flags, given) is None
    assert flags == before
    assert not given


def test_a_default_in_words_is_read_as_a_given_value() -> None:
    flag = Flag(name="size", help="", kind=byte_size, default="5GB")
    parser = FlagParser("program", "", [("all", [flag])])
    assert parser.parse([]) == {"size": 5_000_000_000} == parser.parse(["--size", "5GB"])
    assert parser.given == {"size"}


@pytest.mark.parametrize(
    "words",
    [
        ["--max_num_seqs", "64"],  # even the default's own value
        ["--max-num-seqs=64"],
    ],
)
def test_a_given_flag_wins(words: list[str]) -> None:
    flags, given = parse("--preset", "throughput", *words)
    said = apply_preset(flags, given)
    assert flags["max_num_seqs"] == 64
    assert flags["ragged_flash_max_batch_tokens"] == 4096
    assert said == "preset throughput sets: --ragged_flash_max_batch_tokens 4096 --max_gpu_memory_utilization 0.95"


def test_one_in_vllms_words_wins_too() -> None:
    flags, given = parse("--preset", "longContext", "--max-num-batched-tokens", "1024", "--kv-cache-dtype", "auto")
    apply_preset(flags, given)
    assert flags["ragged_flash_max_batch_tokens"] == 1024
    assert flags["kv_cache_quant"] == "no_quant"
    assert flags["max_num_seqs"] == 16


@pytest.mark.parametrize("words", [["--use_lookahead"], ["--decode_algo", "normal"], ["--gamma", "2"]])
def test_who_says_something_of_speculation_has_all_of_it(words: list[str]) -> None:
    flags, given = parse("--preset", "latency", *words)
    said = apply_preset(flags, given)
    assert flags["decode_algo"] == "normal"
    assert said == "preset latency sets: --max_num_seqs 16 --ragged_flash_max_batch_tokens 512"


def test_when_all_is_given_it_says_so() -> None:
    flags, given = parse("--preset", "deterministic", "--deterministic")
    assert apply_preset(flags, given) == "preset deterministic sets: nothing, all of it is given"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["latency", "--task", "embed"], "--preset latency is for generated text, which --task embed has none of"),
        (["chat", "--task", "score"], "--preset chat is for generated text, which --task score has none of"),
        (["deterministic", "--deterministic=false"], "contradict each other"),
        (["fast"], "invalid choice: 'fast'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        server.main(["/no/such", "--preset", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["throughput", "batch", "lowMemory", "deterministic"])
def test_embeddings_have_presets_too(name: str) -> None:
    flags, given = parse("--preset", name, "--task", "embed")
    assert apply_preset(flags, given)


def test_the_server_prints_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert server.main(["/no/such", "--preset", "lowMemory", "--max_num_seqs", "4"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "preset lowMemory sets: --ragged_flash_max_batch_tokens 512 --kv_cache_quant int8 --cuda_graph_max_tokens 0 "
        "--max_gpu_memory_utilization 0.8"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_check_and_fit_plan_with_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLADE_TERMINATION_LOG", str(tmp_path / "log"))
    flags, given = parse("--preset", name)
    apply_preset(flags, given)
    wanted = memory_fields(flags)
    seen: list[dict[str, Any]] = []

    def record(flags: dict[str, Any], *rest: object) -> Any:
        seen.append(memory_fields(flags))
        raise ValueError("seen")

    monkeypatch.setattr(check, "_engine_config", record)
    monkeypatch.setattr(fit, "_engine_config", record)
    with pytest.raises(ValueError, match="seen"):
        check.main(["--model", "model", "--items", "memoryFit", "--preset", name])
    assert fit.main(["model", "--preset", name]) == 1
    assert seen == [wanted, wanted]
    assert {*wanted} == {*MEMORY_FIELDS.values()}
