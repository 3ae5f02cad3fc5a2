"""The memory that adapters may take. Free of torch, for ``blade_llm_check``."""

from __future__ import annotations

from blade_llm.config import EngineConfig
from blade_llm.lora.targets import Targets
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.spec.adapter_layout import SlotLayout, buffers_of


def host_adapters(config: EngineConfig) -> int:
    """Adapters in host memory at most."""
    return config.max_cpu_loras or 4 * config.max_loras


def adapter_bytes(config: EngineConfig, model: ModelConfig, dtype: DTypeName, *, on_gpu: bool) -> int:
    """Bytes on the device where adapters of the largest rank for all layers fill its slots; on CPU in host memory, that
    is the device's. ``model``: of several ranks, what one has of it. 0 where none are served."""
    if not config.enable_lora:
        return 0
    itemsize = DTYPE_BYTES[dtype if config.lora_dtype == "auto" else config.lora_dtype]
    linears = Targets.of(model).linears
    if on_gpu:
        layout, buffers = SlotLayout(linears, config.max_lora_rank), buffers_of(config.max_loras)
        return buffers * layout.buffer_bytes(itemsize) + layout.entries_bytes
    parts = (part for linear in linears.values() for part in linear.parts)
    one = sum(config.max_lora_rank * (part.wanted_inputs + part.wanted) for part in parts) * itemsize
    return one * host_adapters(config)
