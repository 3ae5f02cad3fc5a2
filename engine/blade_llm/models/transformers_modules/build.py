"""transformers' modules of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PretrainedConfig

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families.registry import FAMILIES
from blade_llm.models.transformers_modules.attention import NAME


def read_config(architecture: str, fields: Mapping[str, Any]) -> PretrainedConfig:
    """transformers' configuration of the fields in ``config.json``. Code of the repository is never run.

    Raises :class:`UnsupportedModelError` for what is no causal language model of this transformers.
    """
    model_type = str(fields.get("model_type", ""))
    # get() of this mapping finds only what is loaded already
    config_class: Any = CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else None  # noqa: SIM401
    model_class: Any = config_class and MODEL_FOR_CAUSAL_LM_MAPPING.get(config_class, None)
    if getattr(model_class, "__name__", "") != architecture:
        hint = "" if model_type else "; config.json has no 'model_type'"
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; use a model of one of these: {', '.join(FAMILIES)}; or "
            f"of another that transformers {transformers.__version__} has as a causal language model{hint}"
        )
    try:
        config: PretrainedConfig = config_class.from_dict(dict(fields))
    except Exception as error:  # each class checks its fields in a way of its own
        raise ModelFilesError(f"transformers cannot read the fields of {architecture}: {error}") from error
    config.use_cache = False
    return config


def build_modules(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    """The model of ``config``, for inference; its parameters have no memory, its buffers their values."""
    with _parameters_on_meta():
        return _from_config(config, dtype)


def build_shapes(config: PretrainedConfig) -> Any:
    """The model of ``config`` without any memory."""
    with torch.device("meta"):
        return _from_config(config, torch.float32)


def _from_config(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config, dtype=dtype, attn_implementation=NAME, trust_remote_code=False).eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters lose their memory, which is not written to yet, when a module takes them; buffers keep theirs.

    Tables such as rotary frequencies are computed by a module's constructor and are in no checkpoint.
    """
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # a tied one stays the same object
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
