"""Which layers of the model an adapter's modules are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blade_llm.lora.errors import AdapterError
from blade_llm.models.config import ModelConfig
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap

_IN_LAYER: Final = re.compile(r"\.\d+\.")
_EXPERTS: Final = re.compile(r"expert|router|\.gate$|\.mlp\.shared\.")


@dataclass(frozen=True, slots=True)
class Target:
    """A linear layer as the checkpoint, and so PEFT, has it."""

    place: str
    """Of the model's layer that it is a part of: ``layers.3.attention.qkv``."""
    part: LinearPart
    first_output: int
    """Where its outputs begin among the layer's."""
    here: bool = True
    """False: another pipeline stage has the layer, by whose ``place`` it is not known here."""


class Targets:
    """The modules of one model that an adapter may have weights for.

    Args:
        tensors: of the model, or what one rank has of it.
        whole: of the whole model, where ``tensors`` is that of a pipeline stage: what other stages have is found, too.
    """

    def __init__(self, tensors: TensorMap, whole: TensorMap | None = None) -> None:
        self._prefix = tensors.optional_prefix
        self.linears: dict[str, LinearMap] = {
            place: linear for place, linear in tensors.linears.items() if _is_served(place)
        }
        """The layers that take adapters here, by place."""
        self._by_module: dict[str, Target] = {}
        if whole is not None:
            self._add({place: linear for place, linear in whole.linears.items() if _is_served(place)}, here=False)
            tensors = whole
        self._others = {part.module for linear in tensors.linears.values() for part in linear.parts}
        self._others |= {part.name.removesuffix(".weight") for part in tensors.tensors.values()}
        self._add(self.linears, here=True)
        self._aliases = _other_names(tensors)
        self._vision = tensors.vision

    def _add(self, linears: Mapping[str, LinearMap], *, here: bool) -> None:
        for place, linear in linears.items():
            first = 0
            for part in linear.parts:
                self._by_module[part.module] = Target(place, part, first, here)
                first += part.wanted

    @classmethod
    def of(cls, config: ModelConfig, whole: ModelConfig | None = None) -> Targets:
        """Of the model that ``config`` describes; ``whole``: of which that is a stage."""
        return cls(config.tensors, None if whole is None else whole.tensors)

    @property
    def modules(self) -> list[str]:
        """The names of all."""
        return list(self._by_module)

    def find(self, module: str) -> Target:
        """The layer called ``module``. Raises :class:`AdapterError` for one that the model has not, or that takes no
        adapter."""
        for name in (module, self._prefix + module):
            name = self._aliases.get(name, name)
            if name in self._by_module:
                return self._by_module[name]
        if any(name in self._others for name in (module, self._prefix + module)):
            raise AdapterError(
                f"{module} takes no adapter: only linear layers of attention and MLP do; experts, shared ones too, "
                "routers, embeddings, output matrix and kv_b_proj of latent attention do not; merge the adapter into "
                "its model and serve that"
            )
        if self._vision and f"{module}.".startswith(self._vision):
            raise AdapterError(
                f"{module} is a part of the vision tower, which takes no adapter: train one without it, or merge the "
                "adapter into its model and serve that"
            )
        if ".experts." in f".{module}." or module.endswith((".gate", ".router")):
            raise AdapterError(f"{module}: experts and routers take no adapter; merge it into its model and serve that")
        raise AdapterError(f"this model has no layer {module}")


def _other_names(tensors: TensorMap) -> dict[str, str]:
    """What other checkpoints of the family, and so adapters of them, call the layers that take adapters."""
    other = TensorMap() if tensors.variant is None else tensors.variant.make()
    return {
        theirs.module: ours.module
        for place, linear in other.linears.items()
        if _is_served(place)
        for ours, theirs in zip(tensors.linears[place].parts, linear.parts, strict=True)
    }


def _is_served(place: str) -> bool:
    """Layers that are called with all tokens of a step: those inside of decoder layers, but of experts. (The matrix
    that expands latent vectors is none: it is multiplied into queries and results, head by head.)"""
    return _IN_LAYER.search(place) is not None and _EXPERTS.search(place) is None
