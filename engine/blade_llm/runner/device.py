"""Chooses the device and the attention of a model, and has torch's names for the compute types."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, Literal

import torch

from blade_llm.kernels import native
from blade_llm.kernels.backend import backend_of, torch_only
from blade_llm.kernels.linear import native as native_linear
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.models.dtypes import DTypeName
from blade_llm.models.errors import UnsupportedSettingError
from blade_llm.models.quantized.config import quant_problem
from blade_llm.runner.startup.host_memory import huge_pages_available
from blade_llm.spec.tensors import TensorMap

AttentionClass = Literal["ragged_flash", "paged"]

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def choose_device(rank: int = 0) -> torch.device:
    """The GPU of this rank where there are GPUs, which becomes the current one; else the CPU.

    Ranks of a machine follow each other, so the remainder is another GPU for each of them.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if not rank:
        return torch.device("cuda")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def require_devices(ranks: int) -> None:
    """Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` where there are GPUs, but fewer than ranks."""
    if torch.cuda.is_available() and (found := torch.cuda.device_count()) < ranks:
        raise UnsupportedSettingError(
            f"{ranks} ranks need as many GPUs, {found} are visible; lower --tensor_parallel_size (times "
            f"--pipeline_parallel_size) to {found}, or give the process more GPUs (CUDA_VISIBLE_DEVICES)"
        )


def require_gpus(device: torch.device) -> None:
    """Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` for ``--enable_custom_allreduce`` elsewhere."""
    if device.type != "cuda":
        raise UnsupportedSettingError(
            "--enable_custom_allreduce is for GPUs, and there is none; leave it out: ranks on CPUs add in shared memory"
        )


def choose_attention(requested: AttentionClass | None, device: torch.device) -> AttentionClass:
    """The attention implementation for ``--attn_cls``, by default the one that ``device`` does best.

    Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` for one that cannot run there.
    """
    triton = device.type == "cuda" and find_spec("triton") is not None and not torch_only()
    if requested == "ragged_flash" and not triton:
        absent = "BLADE_LLM_KERNELS rules out" if torch_only() else "is not installed"
        reason = f"Triton, which {absent}" if device.type == "cuda" else "a GPU, and there is none"
        raise UnsupportedSettingError(f"--attn_cls ragged_flash needs {reason}; leave it out or give --attn_cls paged")
    return requested or ("ragged_flash" if triton else "paged")


def enable_triton_mla(latent: bool, attention: AttentionClass, device: torch.device) -> str:
    """What ``--enable_triton_mla`` comes to, in words. ``latent``: the model has latent attention.

    Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` where ``attention`` rules Triton's kernels out.
    """
    if not latent:
        return "--enable_triton_mla changes nothing: the model has no multi-head latent attention"
    if device.type == "cpu":
        return "--enable_triton_mla changes nothing on a CPU: the native kernels compute multi-head latent attention"
    if attention == "paged":
        raise UnsupportedSettingError(
            "--enable_triton_mla goes with --attn_cls ragged_flash alone, and that needs Triton; leave one of "
            "--enable_triton_mla and --attn_cls paged out, or install Triton"
        )
    return "multi-head latent attention is computed by Triton kernels"


def require_quantization(
    quant: Quantization, device: torch.device, dtype: DTypeName, tensors: TensorMap | None = None
) -> None:
    """Refuse ``--quant`` where only the reference would compute it, unless the environment asks for the reference.

    ``tensors``: of the model's checkpoint.

    Raises:
        UnsupportedSettingError: there is no kernel for this device and type, or the checkpoint is quantised already.
    """
    if tensors is not None and (problem := quant_problem(tensors, quant)):
        raise UnsupportedSettingError(problem)
    if quant == "none" or torch_only() or _quantizes(device, dtype):
        return
    if device.type == "cuda":
        raise UnsupportedSettingError(
            f"--quant {quant} has no kernel for GPUs yet, and would be many times slower than none; leave it out"
        )
    if dtype != "bfloat16":
        raise UnsupportedSettingError(
            f"--quant {quant} needs activations in bf16, not {dtype}; give --dtype bfloat16 or leave --quant out"
        )
    raise UnsupportedSettingError(
        f"--quant {quant} needs the native operators (an x86-64 CPU with AVX2, and a C++ compiler or an image that has "
        "them compiled), which are not there; leave it out"
    )


def _quantizes(device: torch.device, dtype: DTypeName) -> bool:
    """Whether quantised layers have a kernel. The reference makes floats of all weights in each step, which is many
    times slower than no quantisation."""
    native_here = device.type == "cpu" and backend_of(torch.empty(0)) == "native"
    return native_here and dtype == "bfloat16" and native_linear.is_available()


def describe(device: torch.device, attention: AttentionClass) -> str:
    """The device in words, for the start-up table: processor, threads, implementations, pages."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, attention {attention}"
    threads = torch.get_num_threads()
    operators = f"native operators ({native.isa()})" if backend_of(torch.empty(0)) == "native" else "torch operators"
    pages = "huge pages" if huge_pages_available() else "4 KiB pages"
    return f"CPU, {threads} thread{'s' * (threads != 1)}, {operators}, {pages}"
