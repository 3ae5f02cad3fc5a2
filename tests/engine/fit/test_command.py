"""`blade_llm_fit` as its users see it: text, JSON, status, and flags that do not go together."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hub_support.fake_hub import FakeHub, running_hub
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.cli import fit

SEVEN_B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The configuration of a model of 7.6 billion weights, and none of them."""
    folder = tmp_path / "seven"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SEVEN_B))
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    status = fit.main(argv)
    return status, capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    _, out = run(capsys, *argv, "-o", "json")
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_model_that_fits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, model, "--gpu", "h100", "--context", "4k")
    assert status == 0
    assert "Qwen2ForCausalLM in bfloat16 on 1 x H100 (about 79.2 GiB)" in out
    assert "  bytes a token              57,344\n" in out  # 2 x 28 layers x 4 heads x 128 x 2 bytes
    assert "It fits." in out
    assert "no measurement" in out
    assert "64.0 requests of 4,000 tokens" in out
    assert "Cost" not in out


def test_bytes_are_those_of_the_weights(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, model, "--gpu", "H100")
    assert found["weights"] / 2 == pytest.approx(7.62e9, rel=0.01)
    assert found["kv_tokens"] * found["kv_token"] == found["kv_cache"]
    assert found["where"] == {"device": "H100", "memory": int(79.2 * 2**30), "count": 1}
    halved = document(capsys, model, "--gpu", "H100", "--gpus", "2")
    assert halved["ranks"] == 2
    assert halved["kv_token"] == found["kv_token"] / 2
    assert halved["weights"] == pytest.approx(found["weights"] / 2, rel=0.02)


@pytest.mark.parametrize("where", [["--gpu", "T4"], ["--memory", "8Gi"], ["--gpu", "A10", "--max_model_len", "32768"]])
def test_each_proposed_change_does_fit(model: str, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [model, *where, "--max_num_seqs", "4", "--dtype", "bfloat16"]
    if where[1] == "A10":
        command += ["--max_gpu_memory_utilization", "0.72"]
    status, out = run(capsys, *command)
    assert status == 1
    assert "It does not fit" in out
    proposed = document(capsys, *command)["change"]
    assert len(proposed) >= 2
    for change in proposed:
        fitting = document(capsys, *command, *shlex.split(change["flags"]))
        assert fitting["fits"], change
        assert fitting["kv_tokens"] == change["kv_tokens"]
        assert fitting["concurrency"] == change["concurrency"]


def test_where_nothing_helps_it_says_so(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, model, "--memory", "1Gi")
    assert status == 1
    assert "No flag alone makes it fit" in out
    assert document(capsys, model, "--memory", "1Gi")["change"] == []


def test_money_is_what_the_caller_says(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, model, "--gpu", "A100", "--gpus", "2", "--price", "1.5", "--currency", "EUR")
    speed, cost = found["speed"]["tokens_per_second"], found["cost"]
    assert cost["currency"] == "EUR"
    assert cost["per_hour"] == 3.0
    assert cost["per_million_tokens_at_least"] == pytest.approx(3.0 / 3600 / speed * 1e6)
    assert "cost" not in document(capsys, model, "--gpu", "A100")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpu", "H1000"], "'H1000' is not a GPU of the table; give one of T4"),
        (["--gpus", "2"], "--gpus 2 needs the kind"),
        (["--price", "2"], "--price is for a GPU and hour; give --gpu, too"),
        (["--gpu", "H100", "--price", "-2"], "is not an amount of money of at least 0"),
        (["--gpu", "H100", "--memory", "8Gi"], "--memory is for CPUs"),
        (["--gpu", "H100", "--gpus", "3", "-pp", "2"], "--gpus 3 cannot be divided into 2 stages"),
        (["--gpu", "H100", "--gpus", "4", "-tp", "2"], "contradict each other"),
    ],
)
def test_flags_that_do_not_go_together(
    model: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        fit.main([model, *argv])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--context", "40000"], "--context 40000 is more than one request may have, 32768"),
        (["--gpu", "H100", "--gpus", "8"], "tensor_parallel_size"),
        (["--max_model_len", "64k"], "is more than the model's own length"),
    ],
)
def test_what_the_model_does_not_take(
    model: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit.main([model, *argv]) == 1
    assert message in capsys.readouterr().err


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        hub.add("acme/tiny", make_model(tmp_path / "source"))
        yield hub


def test_of_a_hub_model_no_weights_are_downloaded(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "hf://acme/tiny", "--memory", "4Gi")
    assert status == 0
    assert "It fits." in out
    assert any("config.json" in str(request) for request in hub.requests)
    assert not any("safetensors" in str(request) for request in hub.requests)


def test_a_hub_model_that_is_not_there(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["hf://acme/none", "--memory", "4Gi"]) == 1
    assert "acme/none" in capsys.readouterr().err
