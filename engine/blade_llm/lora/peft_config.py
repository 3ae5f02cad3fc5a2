"""``adapter_config.json`` as PEFT writes it: what is served of it, and a refusal by name of what is not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.lora.errors import AdapterError

CONFIG_NAME: Final = "adapter_config.json"
_MAX_CONFIG_BYTES: Final = 1_000_000
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to initialise an adapter that also change the base model's weights."""
_MERGE: Final = "merge the adapter into its model (PEFT: merge_and_unload) and serve that"
_REFUSED: Final = (
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "layer_replication", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "modules_to_save",
)  # fmt: skip
"""Fields that must be empty: with them there is more to compute than ``scale * B A x``."""


class PeftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that decide what an adapter computes; all others are about training."""

    peft_type: str
    r: int = 8
    lora_alpha: float = 8
    target_modules: str | list[str] | None = None
    """The ends of modules' names, a regular expression for whole names, or ``all-linear``."""
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    """Of the base layer's weight alone: A and B are stored in one way."""
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    base_model_name_or_path: str | None = None

    def rank(self, module: str) -> int:
        """The rank of one module."""
        return int(_of_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """The factor of ``B A x``: alpha / r, or alpha / sqrt(r) (Kalajdzievski, arXiv 2312.03732)."""
        rank, alpha = self.rank(module), _of_pattern(self.alpha_pattern, module, self.lora_alpha)
        return float(alpha / (math.sqrt(rank) if self.use_rslora else rank))

    def targets(self, module: str) -> bool:
        """Whether the adapter is meant to have weights for ``module``, a linear layer of the decoder's layers."""
        if self.exclude_modules and _matches(self.exclude_modules, module):
            return False
        if self.target_modules is None:
            return False
        if self.target_modules != "all-linear" and not _matches(self.target_modules, module):
            return False
        if self.layers_to_transform is None or isinstance(self.target_modules, str):
            return True
        wanted = self.layers_to_transform
        return _layer_of(module, self.layers_pattern) in ([wanted] if isinstance(wanted, int) else wanted)


def read_peft_config(folder: Path) -> PeftConfig:
    """Read and judge the configuration. Raises :class:`AdapterError`."""
    path = folder / CONFIG_NAME
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise AdapterError(
            f"{path} cannot be read: {error.strerror}; give a folder that PEFT's save_pretrained wrote"
        ) from None
    if len(data) > _MAX_CONFIG_BYTES:
        raise AdapterError(f"{path} has more than {_MAX_CONFIG_BYTES} bytes; give a folder that PEFT wrote")
    try:
        raw: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        config = msgspec.convert({name: value for name, value in raw.items() if value is not None}, PeftConfig)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterError(f"{path}: {error}; correct the file") from None
    _check(path, config, raw)
    return config


def _check(path: Path, config: PeftConfig, raw: dict[str, Any]) -> None:
    if config.peft_type != "LORA":
        raise AdapterError(f"{path}: peft_type {config.peft_type!r} is not served, only LORA is; {_MERGE}")
    for name in _REFUSED:
        if raw.get(name):
            raise AdapterError(f"{path}: {name} {_shown(raw[name])} is not served; {_MERGE}")
    if config.bias != "none":
        raise AdapterError(f"{path}: bias {config.bias!r} is not served, only 'none' is; {_MERGE}")
    initial = str(config.init_lora_weights).lower()
    if any(initial.startswith(name) for name in _CHANGES_BASE):
        raise AdapterError(
            f"{path}: init_lora_weights {initial!r} changes the base model's weights; save the adapter as a plain one "
            "(PEFT: save_pretrained with path_initial_model_for_weight_conversion), or " + _MERGE
        )
    numbers = [config.r, *config.rank_pattern.values()]
    if min(numbers) < 1:
        raise AdapterError(f"{path}: a rank of {min(numbers)} is none; correct r and rank_pattern")
    if not all(math.isfinite(alpha) for alpha in (config.lora_alpha, *config.alpha_pattern.values())):
        raise AdapterError(f"{path}: lora_alpha must be a finite number")
    targets, excluded = config.target_modules, config.exclude_modules
    expressions = [each for each in (targets, excluded) if isinstance(each, str)]
    for expression in (*expressions, *config.rank_pattern, *config.alpha_pattern):
        try:
            re.compile(expression)
        except re.error as error:
            raise AdapterError(f"{path}: {expression!r} is no regular expression: {error}") from None


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _matches(wanted: str | list[str], module: str) -> bool:
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _of_pattern(patterns: dict[str, Any], module: str, otherwise: float) -> float:
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            return float(value)
    return otherwise


def _layer_of(module: str, pattern: str | list[str] | None) -> int | None:
    """The number of the layer that ``module`` is in, below a list of the given name, or of any."""
    names = [pattern] if isinstance(pattern, str) else pattern or [r"[^.]+"]
    for name in names:
        if found := re.fullmatch(rf"(?:.*?\.)?{name}\.(\d+)\..*", module):
            return int(found[1])
    return None
