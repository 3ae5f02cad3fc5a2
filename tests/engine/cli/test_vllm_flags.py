"""vLLM's flags: the table, the page written from it, and what the command line and ``LLM`` do."""

from __future__ import annotations

from pathlib import Path

import pytest

from blade_llm.cli.server_flags import GROUPS
from blade_llm.cli.vllm_flags import ServerFlagParser, markdown
from blade_llm.config import EngineConfig
from blade_llm.vllm_options import VLLM_OPTIONS, VllmOption, engine_fields

FLAGS = {flag.name: flag for flags in GROUPS.values() for flag in flags}
DEFAULTS = {name: flag.default for name, flag in FLAGS.items()}
EXAMPLES = {
    "tokenizer": ("/t", "/t"), "runner": ("pooling", "embed"), "gpu_memory_utilization": ("0.5", 0.5),
    "kv_cache_memory_bytes": ("1GiB", 1 << 30), "num_gpu_blocks_override": ("99", 99),
    "kv_cache_dtype": ("fp8", "fp8_e4m3"), "max_num_batched_tokens": ("8k", 8000),
    "preemption_mode": ("recompute", "RECOMPUTE"), "cuda_graph_sizes": ("8", [8]),
    "cudagraph_capture_sizes": ("8", [8]), "max_cudagraph_capture_size": ("64", 64), "num_speculative_tokens": ("4", 4),
    "speculative_model": ("x", "x"), "ngram_prompt_lookup_min": ("3", 3),
    "uvicorn_log_level": ("trace", "DEBUG"), "shutdown_timeout": ("5", 5.0),
}  # fmt: skip
FIELDS = EngineConfig.__struct_fields__


def _parse(*argv: str) -> tuple[dict[str, object], list[str]]:
    parser = ServerFlagParser("blade_llm_server")
    return parser.parse(argv), parser.warnings


def _refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        _parse(*argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def _spelled(option: VllmOption, value: str) -> list[list[str]]:
    names = [f"--{option.name}", f"--{option.name.replace('_', '-')}", *([option.short] if option.short else [])]
    return [[name] if option.switch and value == "true" else [name, value] for name in names]


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "vllm-flags.md"
    assert page.read_text(encoding="utf-8") == markdown(), "run make generate"


@pytest.mark.parametrize("option", VLLM_OPTIONS.values(), ids=lambda option: option.name)
def test_every_option_does_what_the_table_says(option: VllmOption, capsys: pytest.CaptureFixture[str]) -> None:
    match option.status:
        case "same":
            assert option.to == option.name
            assert option.to in FLAGS
        case "ignored":
            for spelled in _spelled(option, "true" if option.switch else "1"):
                flags, warnings = _parse("M", *spelled)
                assert flags == {**DEFAULTS, "model": "M"}
                assert warnings == [f"{spelled[0]} changes nothing: {option.note}"]
        case "refused":
            for spelled in _spelled(option, "true" if option.switch else "surely/not"):
                line = _refused(capsys, "M", *spelled)
                assert spelled[0] in line
                assert option.note in line
            for off in option.off:
                assert _parse("M", f"--{option.name}={off}")[0] == {**DEFAULTS, "model": "M"}
        case "renamed" if not option.switch:
            given, becomes = EXAMPLES[option.name]
            for spelled in _spelled(option, given):
                flags, warnings = _parse("M", *spelled)
                assert flags == {**DEFAULTS, "model": "M", option.to: becomes}
                assert warnings == []
        case "renamed":
            on = not option.values
            for argv, value in [([f"--{option.name}"], on), ([f"--no-{option.name.replace('_', '-')}"], not on)]:
                assert _parse("M", *argv)[0][option.to] is value


def test_values_are_spelt_as_vllms() -> None:
    for option in VLLM_OPTIONS.values():
        for theirs, ours in option.values.items():
            flag = FLAGS[option.to]
            if flag.accepts is None or flag.kind(ours) == flag.default or flag.kind(ours) in flag.accepts:
                assert _parse("M", f"--{option.name.replace('_', '-')}={theirs}")[0][option.to] == flag.kind(ours)


@pytest.mark.parametrize(
    "argv",
    [["M", "--port", "1"], ["--port", "1", "M"], ["--enforce-eager", "M", "--port=1"], ["--model", "M", "--port", "1"],
     ["--disable_prompt_cache", "false", "M", "--port=1"], ["--enforce-eager", "--model=M", "--port", "1"]],
)  # fmt: skip
def test_the_model_may_stand_alone(argv: list[str]) -> None:
    flags, _ = _parse(*argv)
    assert (flags["model"], flags["port"]) == ("M", 1)


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["--port", "1"], "--model is missing"), (["M", "N"], "unexpected argument 'N'"),
     (["--model", "M", "N"], "unexpected argument 'N'"), (["M", "--gpu-memory-utilization", "2"], "share"),
     (["M", "--gpu-memory-utilisation", "0.5"], "did you mean --gpu_memory_utilization?"),
     (["M", "--kv-cache-dtype", "int9"], "choose from auto"),
     (["M", "-pp", "0"], "at least 1"),
     (["M", "--enforce-eager", "maybe"], "unexpected argument 'maybe'"),
     (["M", "--max-model-len", "1.5"], "like 4096"),
     (["M", "--speculative-config.model", "x"], "'x' is not a JSON object"),
     (["M", "--port"], "--port")],
)  # fmt: skip
def test_what_cannot_be_used_names_its_flag(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in _refused(capsys, *argv)


def test_numbers_of_tokens_and_parts_of_json_options() -> None:
    assert _parse("M", "--max-model-len", "32K")[0]["max_model_len"] == 32768
    assert _parse("M", "--max-model-len=1.5k")[0]["max_model_len"] == 1500
    for word in ("--compilation-config.level", "-cc.level"):
        for argv in ([word, "3"], [f"{word}=3"]):
            assert _parse("M", *argv)[1][0].startswith(f"{word} changes nothing")
    assert _parse("model.v1", "--served-model-name", "seed.x")[0]["served_model_name"] == ["seed.x"]
    assert "-O changes nothing" in _parse("M", "-O3")[1][0]


@pytest.mark.parametrize("word", ["--api-key", "--api_key", "--hf-token"])
def test_secrets_are_never_shown(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([word, "sk-1"], [f"{word}=sk-1"]):
        line = _refused(capsys, "M", *argv)
        assert f"{word} is not taken" in line
        assert "sk-1" not in line
    name = word.removeprefix("--").replace("-", "_")
    with pytest.raises(ValueError, match=rf"^{name} is not taken"):
        engine_fields({name: "sk-1"})


def test_a_key_in_vllms_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-1")
    line = _refused(capsys, "M")
    assert "blade_router --keys" in line
    assert "sk-1" not in line
    monkeypatch.setenv("VLLM_API_KEY", "")
    assert _parse("M")[1] == []


def test_defaults_of_vllms_that_are_not_ours_are_warned_of() -> None:
    (warning,) = _parse("M", "--allowed-methods", '["*"]')[1]
    assert warning.startswith("--allowed-methods changes nothing: pages of --allowed_origins may send GET, POST")


def test_allowed_origins(capsys: pytest.CaptureFixture[str]) -> None:
    """In vLLM's JSON or one by one."""
    for given in (("--allowed-origins", '["https://a.example", "https://b"]'), ("--allowed_origins=*",)):
        flags, warnings = _parse("M", *given)
        assert warnings == []
        assert flags["allowed_origins"] in ([["https://a.example", "https://b"]], [["*"]])
    for wrong in ("chat.example.com", "https://a.example/chat", "[1]", "[", "null"):
        assert "allowed_origins" in _refused(capsys, "M", "--allowed_origins", wrong)


def test_arguments_of_templates(capsys: pytest.CaptureFixture[str]) -> None:
    flags, _ = _parse("M", "--default-chat-template-kwargs", '{"enable_thinking": false}')
    assert flags["default_chat_template_kwargs"] == {"enable_thinking": False}
    assert "JSON object" in _refused(capsys, "M", "--default-chat-template-kwargs", "[1]")


def test_a_common_command_line_of_vllms() -> None:
    line = (
        "org/model --host 0.0.0.0 --port 8000 --served-model-name a b --tensor-parallel-size 1 --dtype bfloat16 "
        "--gpu-memory-utilization 0.92 --max-model-len 8192 --max-num-seqs 256 --max-num-batched-tokens 8192 "
        "--enable-prefix-caching --enable-chunked-prefill --trust-remote-code --enable-auto-tool-choice "
        "--tool-call-parser hermes --reasoning-parser qwen3 --disable-log-requests --seed 0"
    )
    flags, warnings = _parse(*line.split())
    assert flags == DEFAULTS | {
        "model": "org/model", "host": "0.0.0.0", "port": 8000, "served_model_name": ["a", "b"], "dtype": "bfloat16",
        "max_gpu_memory_utilization": 0.92, "max_model_len": 8192, "max_num_seqs": 256,
        "ragged_flash_max_batch_tokens": 8192, "tool_call_parser": "hermes", "reasoning_parser": "qwen3",
    }  # fmt: skip
    assert len(warnings) == 5


def test_arguments_of_llm() -> None:
    fields, warnings = engine_fields(
        {"gpu_memory_utilization": 0.5, "enforce_eager": True, "max_num_batched_tokens": 512, "max_num_seqs": 8,
         "enable_prefix_caching": False, "tensor_parallel_size": 1, "kv_cache_dtype": "auto", "swap_space": 4,
         "trust_remote_code": True, "quantization": None, "load_format": "safetensors", "mistaken": 1}
    )  # fmt: skip
    assert fields == {
        "max_gpu_memory_utilization": 0.5, "disable_cuda_graph": True, "max_batch_tokens": 512, "max_num_seqs": 8,
        "enable_prompt_cache": False, "load_format": "auto", "tensor_parallel_size": 1, "mistaken": 1,
        "kv_cache_quant": "no_quant",
    }  # fmt: skip
    assert engine_fields({"kv_cache_dtype": "fp8_e5m2"})[0] == {"kv_cache_quant": "fp8_e5m2"}
    with pytest.raises(ValueError, match=r"kv_cache_dtype=True .* choose from no_quant, int8"):
        engine_fields({"kv_cache_dtype": True})
    assert [warning.partition(" ")[0] for warning in warnings] == ["swap_space", "trust_remote_code"]
    with pytest.raises(ValueError, match="HF_HUB_CACHE"):
        engine_fields({"download_dir": "/x"})
    assert engine_fields({"pipeline_parallel_size": 2})[0] == {"pipeline_parallel_size": 2}
    with pytest.raises(TypeError, match="mistaken"):
        EngineConfig(model="m", served_names=(), **fields)


def test_llm_takes_no_value_that_changes_nothing() -> None:
    assert engine_fields({"preemption_mode": "recompute"})[0] == {"preempt_strategy": "RECOMPUTE"}
    with pytest.raises(ValueError, match="preemption_mode='swap' is not available in this version; choose from AUTO"):
        engine_fields({"preemption_mode": "swap"})
    for arguments in ({"dtype": "int7"}, {"attn_cls": "flash"}, {"load_format": "tensorizer"}, {"model_impl": "terra"}):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}='.*choose from"):
            engine_fields(arguments)
    texts, numbers = {"max_model_len": "32k", "enforce_eager": "yes"}, {"enable_prefix_caching": 2, "max_num_seqs": 1.5}
    for name, value in {**texts, **numbers}.items():
        with pytest.raises(ValueError, match=f"{name}=.*Expected"):
            engine_fields({name: value})
    fields, _ = engine_fields({"dtype": "float16", "cuda_graph_sizes": [8], "packed_cache_dir": Path("/x")})
    assert fields == {"dtype": "float16", "cuda_graph_batch_sizes": (8,), "packed_cache_dir": "/x"}


@pytest.mark.parametrize("option", VLLM_OPTIONS.values(), ids=lambda option: option.name)
def test_llm_takes_of_a_flag_it_has_no_field_for_what_requests_nothing(option: VllmOption) -> None:
    """What the server has when the flag is left out, and no other value: True is not 1, and 1 no default of all."""
    if option.status not in ("same", "renamed"):
        return
    if (flag := FLAGS[option.to]).name in (*FIELDS, "disable_prompt_cache", "ragged_flash_max_batch_tokens"):
        return
    usual = {str(value).lower() for value in (flag.default, *(flag.accepts or ())) if value is not None}
    theirs = {ours: theirs for theirs, ours in option.values.items()}
    for text in usual:
        assert engine_fields({option.name: theirs.get(text, flag.default)}) == ({}, [])
    for value in (True, False, 0, 1, 77, "x"):
        if option.values.get(str(value).lower(), str(value).lower()) not in usual:
            with pytest.raises(ValueError, match="leave it out"):
                engine_fields({option.name: value})


@pytest.mark.parametrize(
    "arguments",
    [{"num_speculative_tokens": 1}, {"tool_call_parser": "hermes"}],
)
def test_llm_refuses_what_it_cannot_do(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        engine_fields(arguments)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [({"enable_prefix_caching": None}, {}), ({"enable_prefix_caching": 1}, {"enable_prompt_cache": True}),
     ({"enable_prefix_caching": False}, {"enable_prompt_cache": False}), ({"max_num_seqs": None}, {}),
     ({"disable_custom_all_reduce": True}, {"enable_custom_allreduce": False}),
     ({"disable_custom_all_reduce": False}, {"enable_custom_allreduce": True}), ({"trust_remote_code": None}, {}),
     ({"pipeline_parallel_size": 1}, {"pipeline_parallel_size": 1}),
     ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 2})],
)  # fmt: skip
def test_values_of_llm_that_request_nothing(arguments: dict[str, object], fields: dict[str, object]) -> None:
    assert engine_fields(arguments) == (fields, [])


@pytest.mark.parametrize(
    ("arguments", "task"),
    [({"task": "generate"}, "generate"), ({"task": "embed"}, "embed"), ({"runner": "auto"}, "generate"),
     ({"runner": "pooling"}, "embed")],
)  # fmt: skip
def test_tasks_of_llm(arguments: dict[str, object], task: str) -> None:
    assert engine_fields(arguments) == ({"task": task}, [])
