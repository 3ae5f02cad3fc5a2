"""What a family is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


@dataclass(frozen=True, slots=True)
class Family:
    """Reads the configuration of some architectures."""

    decoder: Callable[[RawConfig], DecoderSpec]
    """The specs that ``config.json`` asks for. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is missing
    or senseless, :class:`~blade_llm.models.errors.UnsupportedModelError` for what is not computed."""
    names: Names | Callable[[RawConfig], Names]
    """What its checkpoints call the tensors, where that depends on the configuration, too."""

    def names_of(self, raw: RawConfig) -> Names:
        """What a checkpoint with this configuration calls the tensors."""
        return self.names if isinstance(self.names, Names) else self.names(raw)
