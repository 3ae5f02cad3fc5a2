"""Calls of transformers' modules that are the same for all models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from blade_llm.layers.linear import Linear
from blade_llm.models.transformers_modules.attention import PagedAttention


class Projection(nn.Module):
    """A linear layer of this engine in the place of ``nn.Linear``."""

    def __init__(self, linear: Linear, attention: PagedAttention) -> None:
        super().__init__()
        self.linear = linear
        self._attention = attention

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        y = self.linear(x.reshape(-1, x.shape[-1]), self._attention.step)
        return y.view(*x.shape[:-1], -1)


class _Given(nn.Module):
    """In the place of a decoder: its hidden states are known. Heads read all kinds of fields of what it returns."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


def run_decoder(decoder: nn.Module, token_ids: Tensor, positions: Tensor) -> Tensor:
    """Hidden states, [tokens, hidden], of token ids and positions, [tokens] each, in one row."""
    output = decoder(input_ids=token_ids[None], position_ids=positions[None], attention_mask=None, use_cache=False)
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def take_decoder(model: Any) -> nn.Module:
    """The decoder of a causal language model, which is left with its head: called with hidden states as
    ``inputs_embeds``, it gives their logits, whatever it does to them."""
    decoder: nn.Module = model.get_decoder()
    _put(model, decoder, _Given())
    return decoder


@contextmanager
def given_hidden(model: Any) -> Iterator[None]:
    """Meanwhile the model is its head alone, as :func:`take_decoder` leaves it."""
    decoder, given = model.get_decoder(), _Given()
    _put(model, decoder, given)
    try:
        yield
    finally:
        _put(model, given, decoder)


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    name = next(name for name, module in model.named_modules() if module is old)
    model.set_submodule(name, new)
