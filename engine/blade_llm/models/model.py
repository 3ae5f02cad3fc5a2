"""What the runner computes with."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from blade_llm.layers.step import StepMetadata
from blade_llm.models.classifier import Classifier


class Model(Protocol):
    """Token ids in, hidden states out; :meth:`logits` of those that are sampled."""

    nbytes: int
    """Of weights and tables."""

    @property
    def classifier(self) -> Classifier | None:
        """What scores pooled states; cross-encoders alone have one."""

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """Normalised hidden states, [selected, hidden].

        ``token_ids``: [tokens] int. ``selected``: [selected] int64, the tokens whose hidden states are wanted; None
        for all of them.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, vocabulary]."""

    def own_logits(self, hidden: Tensor) -> Tensor:
        """As :meth:`logits`; of several ranks those of this one's part of the vocabulary
        (:func:`~blade_llm.spec.vocabulary.vocabulary_rows`)."""
