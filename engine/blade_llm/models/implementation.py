"""Who computes a model: layers of this engine, or transformers' own modules."""

from __future__ import annotations

import logging
from pathlib import Path

from blade_llm.config import ModelImpl, Task
from blade_llm.models.config import Description, ModelConfig, describe_family, load_model_config
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.families.registry import CLASSIFIERS, EMBEDDING_ONLY, FAMILIES
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.modules import ModulesSpec

logger = logging.getLogger(__name__)


def read_model_config(model_dir: Path, impl: ModelImpl = "auto", task: Task = "generate") -> ModelConfig:
    """The configuration of the model in ``model_dir`` as ``impl`` computes it for ``task``.

    Raises as :func:`~blade_llm.models.config.load_model_config` does; transformers is imported where it is needed.
    """
    if impl == "blade":
        return load_model_config(model_dir, task)
    return load_model_config(model_dir, task, _describe_known if impl == "auto" else _describe_modules)


def through_transformers(config: ModelConfig) -> bool:
    """Whether transformers' modules compute it."""
    return isinstance(config.decoder, ModulesSpec)


def log_implementation(config: ModelConfig) -> None:
    """Say which is used where it is not this engine's own."""
    if through_transformers(config):
        logger.info(
            "%s is served through transformers: its own modules compute it, with the paged KV cache",
            config.architecture,
        )


def _describe_known(architecture: str, raw: RawConfig, task: Task) -> Description:
    known = architecture in FAMILIES or architecture in EMBEDDING_ONLY or architecture in CLASSIFIERS
    return (describe_family if known or task != "generate" else _describe_modules)(architecture, raw, task)


def _describe_modules(architecture: str, raw: RawConfig, task: Task) -> Description:
    if task != "generate":
        raise UnsupportedModelError(
            f"--task {task} is not served through transformers' modules; leave out --model_impl transformers"
        )
    if architecture in FAMILIES and FAMILIES[architecture].names_of(raw).vision:
        raise UnsupportedModelError(
            f"{architecture} is served by this engine's own layers alone; leave out --model_impl transformers"
        )
    from blade_llm.models.transformers_modules.describe import describe_modules  # seconds to import

    return describe_modules(architecture, raw)
