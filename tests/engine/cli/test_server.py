"""``blade_llm_server``: flags, and what is refused before the engine starts."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engine_support.fake_engine import TOO_SMALL
from engine_support.server_process import TESTS

from blade_llm.cli.flags import FlagParser, byte_size
from blade_llm.cli.server import main
from blade_llm.cli.server_flags import GROUPS
from blade_llm.server.supervisor import Ports

BLADELLM_FLAGS = """
host port worker_socket_path log_level metric_exporters max_queue_time tensor_parallel_size pipeline_parallel_size
pipeline_micro_batch attention_dp_size enable_custom_allreduce max_gpu_memory_utilization preempt_strategy
ragged_flash_max_batch_tokens decoding_parallelism disable_prompt_cache prompt_cache_enable_swap decode_algo gamma
use_sps use_lookahead look_ahead_window_size look_ahead_gram_size guess_set_size model tokenizer_dir chat_template
dtype tokenizer_special_tokens attn_cls enable_triton_mla with_visual kv_cache_quant kv_cache_quant_sub_heads
disable_cuda_graph cuda_graph_max_batch_size cuda_graph_batch_sizes draft.model draft.tokenizer_dir
draft.chat_template draft.dtype draft.kv_cache_quant draft.kv_cache_quant_sub_heads draft.attn_cls enable_lora
max_lora_rank max_loras max_cpu_loras lora_dtype enable_json_warmup enable_llumnix llumnix_config dist_init_addr
disable_frontend_multiprocessing enable_disagg disagg_pd.inst_id disagg_pd.disagg_transfer_type disagg_pd.inst_role
naming_url enable_semi_pd_mode semi_pd.inst_id semi_pd.transfer_type semi_pd.prefill_server_port
"""


def _parse(*argv: str) -> dict[str, object]:
    return FlagParser("blade_llm_server", "", list(GROUPS.items())).parse(["--model", "m", *argv])


def _refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line a wrong flag gives."""
    with pytest.raises(SystemExit) as caught:
        _parse(*argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_help_shows_every_flag_of_bladellm_and_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = set(re.findall(r"--([\w.]+)", capsys.readouterr().out))
    ours = {"max_num_seqs", "max_model_len", "kv_cache_bytes", "internal_port", "served_model_name", "drain_timeout"}
    assert {*BLADELLM_FLAGS.split(), *ours} <= shown


def test_spellings() -> None:
    values = _parse(
        "--max-model-len=512", "--disable_prompt_cache", "-tp", "1", "--kv_cache_bytes=1GiB", "--use_sps=false"
    )
    assert values["max_model_len"] == 512
    assert values["disable_prompt_cache"] is True
    assert values["kv_cache_bytes"] == 1 << 30
    assert values["tensor_parallel_size"] == 1
    assert _parse("--use_sps=false")["use_sps"] is False
    assert _parse("--disable_prompt_cache", "FALSE")["disable_prompt_cache"] is False


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("1k", 1000), ("1.5GiB", 3 << 29), ("2 MB", 2_000_000), ("16Mi", 16 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize(
    "harmless",
    ["--tensor_parallel_size=1", "--decode_algo=normal", "--kv_cache_quant=no_quant", "--attn_cls=paged", "--gamma=4",
     "--disable_cuda_graph=true", "--enable_lora=false", "--preempt_strategy=RECOMPUTE", "--draft.attn_cls=paged"],
)  # fmt: skip
def test_values_that_request_nothing_are_fine(harmless: str) -> None:
    _parse(harmless)


@pytest.mark.parametrize(
    "unbuilt",
    [["--draft.chat_template", "x"], ["--preempt_strategy", "SWAP"], ["--enable_disagg"]],
)  # fmt: skip
def test_a_flag_without_its_feature_is_refused(unbuilt: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = _refused(capsys, *unbuilt)
    name = unbuilt[0].partition("=")[0]
    assert name in line
    assert "not available in this version" in line


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --max_model_len?" in _refused(capsys, "--max-model-length", "5")
    assert "did you mean --draft.model?" in _refused(capsys, "--draft.modle=x")
    assert "unexpected argument 'MANAGER.DISPATCH_POLICY'" in _refused(capsys, "MANAGER.DISPATCH_POLICY", "load")


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["--port", "70000"], "65535"), (["--max_num_seqs", "0"], "at least 1"), (["--kv_cache_bytes", "lots"], "GiB"),
     (["--disable_prompt_cache", "maybe"], "true nor false"), (["--dtype", "int3"], "float32"),
     (["--max_gpu_memory_utilization", "1.2"], "share"), (["--max_gpu_memory_utilization", "0"], "share"),
     (["--cuda_graph_batch_sizes", "0"], "at least 1"), (["--cuda_graph_max_tokens", "-1"], "at least 0"),
     (["--cuda_graph_token_sizes", "16", "0"], "at least 1"), (["--drain_timeout", "nan"], "seconds"),
     (["--live_timeout", "soon"], "seconds"), (["--lora_modules", "only-a-name"], "NAME=PATH"),
     (["--lora_modules", '{"name": "x"}'], "NAME=PATH"), (["--max_lora_rank", "0"], "at least 1"),
     (["--kv_cache_quant", "int3"], "int8_affine"), (["--kv_cache_quant_sub_heads", "0"], "at least 1"),
     (["--draft.kv_cache_quant", "fp8"], "fp8_e4m3")],
)  # fmt: skip
def test_a_bad_value_names_its_flag(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = _refused(capsys, *argv)
    assert argv[0] in line
    assert says in line


def _start(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Status 1 and one line; nothing was started."""
    assert main(["--host", "127.0.0.1", "--port", "0", *argv], build="no.such:engine") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("blade_llm_server: error: ")
    return line


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--lora_modules", "a=/b"], "--lora_modules needs --enable_lora"),
        (["--lora_allowed_roots", "/b"], "--lora_allowed_roots needs --enable_lora"),
        (["--enable_lora", "--max_cpu_loras", "2"], "--max_cpu_loras 2 is less than --max_loras 8"),
    ],
)
def test_flags_of_adapters_go_together(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in _start(capsys, "--model", "/does/not/matter", *argv)


def test_a_port_in_use(text_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = _start(capsys, "--model", "/does/not/matter", "--port", str(port))
        assert f"port {port}" in line
        assert "--port" in line
        line = _start(capsys, "--model", "/does/not/matter", "--internal_port", str(port))
        assert "--internal_port" in line


def test_a_port_lost_while_the_model_loads(
    text_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers may bind one port; the first that listens has it."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = str(other.getsockname()[1])
        listen = Ports.listen
        monkeypatch.setattr(Ports, "listen", lambda ports: (other.listen(), listen(ports))[1])
        argv = ["--model", str(text_model), "--load_format", "dummy", "--host", "127.0.0.1", "--port", port]
        status = main([*argv, "--internal_port", "0"], build="engine_support.fake_engine:paced")
    assert status == 1
    assert f"error: cannot listen on port {port}" in capfd.readouterr().err.splitlines()[-1]


def test_missing_and_empty_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in _start(capsys, "--model", str(tmp_path / "nothing"))
    assert str(tmp_path) in _start(capsys, "--model", str(tmp_path))


def test_broken_model_folders(text_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    assert "safetensors" in _start(capsys, "--model", str(folder)), "weights are missing"
    dummy = ("--model", str(folder), "--load_format", "dummy")
    assert "--max_model_len 4096" in _start(capsys, *dummy, "--max_model_len", "4096")
    assert "no such file" in _start(capsys, *dummy, "--chat_template", str(tmp_path / "none.jinja"))
    assert "no such folder" in _start(capsys, *dummy, "--worker_socket_path", str(tmp_path / "none"))
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in _start(capsys, *dummy)
    (folder / "tokenizer.json").unlink()
    assert "--tokenizer_dir" in _start(capsys, *dummy)
    shutil.copy(text_model / "tokenizer.json", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    assert "do not belong together" in _start(capsys, *dummy)
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    assert "MambaForCausalLM" in _start(capsys, *dummy)


def test_what_only_the_engine_finds_out(
    text_model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own message, without a traceback, when the user can change something."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    argv = ["--model", str(text_model), "--load_format", "dummy", "--port", "0", "--max_kv_blocks", str(TOO_SMALL)]
    assert main(argv, build="engine_support.fake_engine:paced") == 1
    error = capfd.readouterr().err
    assert error == "blade_llm_server: error: one request needs 128 blocks; raise --max_kv_blocks to 128\n"


def test_the_engine_process_is_started_before_what_reads_models_is_imported() -> None:
    """It imports torch meanwhile, which is the longest part of a start."""
    code = """
import sys, blade_llm.cli.server
late = ("numpy", "jinja2", "tokenizers", "uvloop", "blade_llm.models.config", "blade_llm.weights.checkpoint")
print([name for name in late if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
