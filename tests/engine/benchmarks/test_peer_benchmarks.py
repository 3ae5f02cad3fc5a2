"""What `make bench` needs beside the engines: its text, its read bandwidth and the bytes that a step reads."""

from pathlib import Path

import pytest
from benchmarks.peers import quality, roofline


def test_the_draft_finds_the_text_neither_certain_nor_hopeless() -> None:
    texts = quality._texts()
    assert sum(sum(text.learn) for text in texts) > 4000
    assert 1.5 < quality.perplexity(texts[:20], "float32", "none") < 5


@pytest.mark.parametrize("compilers", ["", None])
def test_read_bandwidth_with_and_without_a_compiler(
    compilers: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roofline, "CACHE", tmp_path)
    monkeypatch.setattr(roofline, "BYTES", 1 << 24)
    if compilers is not None:
        monkeypatch.setenv("PATH", compilers)
    assert 1e8 < roofline.read_bandwidth(rounds=2) < 1e13
    assert ("no compiler" in capsys.readouterr().err) == (compilers is not None)


def test_weight_bytes_is_the_size_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(123))
    assert roofline.weight_bytes(tmp_path) == 123
