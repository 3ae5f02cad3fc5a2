"""The native library: compiled once, by one of several processes, found again, and done without where it cannot be."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blade_llm.kernels import native
from blade_llm.kernels.native import build
from blade_llm.kernels.native.__main__ import main

SOURCE = '#include "value.h"\nextern "C" __attribute__((visibility("default"))) int value() { return VALUE; }\n'

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two operators of one line in place of the real ones, an empty cache, and a compiler that keeps a log."""
    kernels = tmp_path / "kernels"
    for name, source in (("native", "// none\n"), ("one", SOURCE), ("two", "int two() { return 2; }\n")):
        (kernels / name).mkdir(parents=True)
        (kernels / name / "native.cpp").write_text(source)
    (kernels / "native" / "value.h").write_text("#define VALUE 7\n")
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nsleep 0.2\necho "$@" >> {tmp_path}/log\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "KERNELS", kernels)
    monkeypatch.setattr(build, "PREBUILT", kernels / "native" / "libblade_native.so")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build._compiler.cache_clear()
    yield kernels
    build._compiler.cache_clear()


def compilations(sources: Path) -> list[str]:
    """What was compiled so far, by operator."""
    lines = (sources.parent / "log").read_text().splitlines()
    return [word.split("/")[-2] for line in lines if " -c " in line for word in line.split() if word.endswith(".cpp")]


def value(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).value())


def test_compiles_once_and_again_when_a_source_changes(sources: Path) -> None:
    first = build.cached_library()
    assert value(first) == 7
    assert build.cached_library() == first
    assert compilations(sources) == ["native", "one", "two"]
    (sources / "one" / "native.cpp").write_text(SOURCE.replace("VALUE;", "VALUE + 1;"))
    second = build.cached_library()
    assert value(second) == 8
    assert compilations(sources)[3:] == ["one"]  # the other objects are kept


def test_a_shared_header_belongs_to_every_source(sources: Path) -> None:
    build.cached_library()
    (sources / "native" / "value.h").write_text("#define VALUE 9\n")
    assert value(build.cached_library()) == 9
    assert len(compilations(sources)) == 6


def test_processes_at_once_compile_once(sources: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=build.cached_library) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(compilations(sources)) == ["native", "one", "two"]
    assert value(build.cached_library()) == 7


def test_a_killed_compilation_leaves_nothing_that_looks_complete(sources: Path) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=build.cached_library)
    process.start()
    while not (sources.parent / "log").exists():
        time.sleep(0.01)
    process.kill()
    process.join(60)
    assert value(build.cached_library()) == 7


def test_says_what_the_compiler_said(sources: Path) -> None:
    (sources / "two" / "native.cpp").write_text("int two() { return nonsense; }\n")
    with pytest.raises(build.BuildError, match="nonsense"):
        build.cached_library()


def test_needs_a_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.cached_library()


def test_needs_a_writable_cache(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = sources.parent / "occupied"
    occupied.write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    with pytest.raises(build.BuildError, match="XDG_CACHE_HOME"):
        build.cached_library()


def test_a_prebuilt_library_serves_the_sources_it_was_made_of(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert native._prebuilt() is None
    assert main(["build", "--output", str(build.PREBUILT)]) == 0
    assert capsys.readouterr().out.strip() == str(build.PREBUILT)
    assert value(build.PREBUILT) == 7
    assert native._prebuilt() == build.PREBUILT
    (sources / "native" / "value.h").write_text("#define VALUE 9\n")
    assert native._prebuilt() is None
    monkeypatch.setenv("BLADE_LLM_NATIVE_LIB", "/somewhere/else.so")
    assert native._prebuilt() == Path("/somewhere/else.so")


def test_building_ahead_reports_failure(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["build", "--output", str(build.PREBUILT)]) == 1
    assert "no-such-compiler" in capsys.readouterr().err


def test_without_a_compiler_torch_does_the_work(tmp_path: Path) -> None:
    script = (
        "import logging, torch; logging.basicConfig(format='LOG %(message)s')\n"
        "from blade_llm.kernels.backend import backend_of\n"
        "from blade_llm.layers.linear import Linear, LinearOptions\n"
        "weight, x = torch.randn(40, 24).bfloat16(), torch.randn(3, 24).bfloat16()\n"
        "for quant, error in (('none', 0.01), ('int8', 0.02), ('int4', 0.2)):\n"
        "    y = Linear(weight, None, LinearOptions(quant))(x)\n"
        "    expected = x.float() @ weight.float().T\n"
        "    assert (y.float() - expected).norm() < error * expected.norm(), quant\n"
        "print(backend_of(x))\n"
    )
    environment = os.environ | {"CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("BLADE_LLM_NATIVE_LIB", None)
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "torch"
    assert [line for line in result.stderr.splitlines() if line.startswith("LOG")] == [
        "LOG no native CPU operators, torch's take 2-5 times as long: "
        "no C++ compiler (no-such-compiler); install g++, or use an image with the library built in"
    ]


def test_an_unknown_instruction_set_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BLADE_LLM_CPU_ISA", "sse9")
    native.library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert native.library() is None
        assert "BLADE_LLM_CPU_ISA=sse9 is not one of baseline, avx2, avx512, avx512_bf16, amx" in caplog.text
        monkeypatch.setenv("BLADE_LLM_CPU_ISA", "baseline")
        native.library.cache_clear()
        assert native.isa() == "baseline"
    finally:
        monkeypatch.undo()
        native.library.cache_clear()
        native.library()


_OPENMP = """
import torch
from pathlib import Path
from blade_llm.kernels import native

library = native.library()
for count in (1, 3):
    torch.set_num_threads(count)
    assert library.blade_num_threads() == count
mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
print(sum(Path(each).name.startswith(("libgomp", "libiomp", "libomp")) for each in mapped))
"""


def test_one_openmp_is_mapped_and_follows_torch() -> None:
    """The library's parallel loops run in torch's OpenMP: a second one would bring threads of its own.

    In a process of its own: packages that only tests import bring one, too.
    """
    run = subprocess.run([sys.executable, "-c", _OPENMP], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("1", 0), run.stderr
