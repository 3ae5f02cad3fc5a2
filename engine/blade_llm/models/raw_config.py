"""A ``config.json`` as families read it: each field with its check, and an error that names the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, cast

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.spec.mlp import Activation

ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
"""Names in configurations, and what is computed."""
MAX_LAYERS: Final = 10_000
"""Far more than any model has; each layer takes memory before a tensor of it is looked for."""
_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer")


def is_number(value: Any) -> bool:
    """Whether it is a finite number: Python's JSON has NaN, Infinity, and integers that no float can be."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def text_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration of a model with images says of its text model; empty where it says nothing apart."""
    text = fields.get("text_config")
    return text if isinstance(text, dict) else {}


class RawConfig:
    """The fields of a ``config.json``. One that is null counts as absent, but see :attr:`nulls`."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.nulls = frozenset(name for name, value in fields.items() if value is None)
        """Where null is a value, as in ``"sliding_window": null``, and an absent field is another."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field as it is."""
        return self.fields.get(name, default)

    def positive(self, name: str, default: int | None = None) -> int:
        """A positive integer. Without ``default`` it must be there (``KeyError``); raises ``ValueError``."""
        value = self.fields[name] if default is None else self.fields.get(name, default)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name!r} must be a positive integer, not {value!r}")
        if name in _LAYER_COUNTS and value > MAX_LAYERS:
            raise ValueError(f"{name!r} must be at most {MAX_LAYERS}, not {value}")
        return value

    def count(self, name: str, default: int) -> int:
        """A whole number, 0 or above. Raises ``ValueError``."""
        value = self.fields.get(name, default)
        if type(value) is not int or value < 0:
            raise ValueError(f"{name!r} must be a whole number of at least 0, not {value!r}")
        return value

    def above_zero(self, name: str, default: float | None = None) -> float:
        """A finite number above 0. Without ``default`` it must be there (``KeyError``); raises ``ValueError``."""
        value = self.fields[name] if default is None else self.fields.get(name, default)
        if not is_number(value) or value <= 0:
            raise ValueError(f"{name!r} must be a finite number above 0, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes or no."""
        return bool(self.fields.get(name, default))

    def activation(self, name: str = "hidden_act", default: str = "silu") -> Activation:
        """Raises :class:`UnsupportedModelError` for one that is not computed."""
        value = str(self.fields.get(name, default))
        if value not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"activation {value!r} ({name!r}) is not supported; supported are {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose value would be ignored: absent, or one of ``allowed``.

        Raises :class:`UnsupportedModelError`.
        """
        value = self.fields.get(name, allowed[0])
        if value not in allowed:
            raise UnsupportedModelError(f"{name!r} {value!r} is not supported; {_choices(allowed)} is")

    def head_dim(self) -> int:
        """``head_dim``, or what the hidden size divides into."""
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        if "head_dim" not in self.fields and hidden % heads:
            raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
        head_dim = self.positive("head_dim", hidden // heads)
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")
        return head_dim

    def layer_windows(self, window: int) -> tuple[int, ...]:
        """Of each layer, how many tokens a token sees: ``window`` where ``layer_types`` says so, else 0 for all."""
        kinds = cast("list[str]", self.fields["layer_types"])
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise UnsupportedModelError(f"layers of kind {unknown[0]!r} ('layer_types') are not supported")
        if len(kinds) != self.positive("num_hidden_layers"):
            raise ValueError(f"'layer_types' has {len(kinds)} entries for {self.positive('num_hidden_layers')} layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _choices(allowed: tuple[Any, ...]) -> str:
    return " or ".join(repr(each) for each in allowed)
