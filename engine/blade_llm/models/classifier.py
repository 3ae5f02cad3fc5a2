"""What turns a pooled state into the score of a pair of texts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blade_llm.models.parameters import Parameters
from blade_llm.spec.decoder import ClassifierSpec


class Classifier:
    """``output(tanh(dense(state)))``, or ``output(state)``. Its weights stay as they are: they are few, and a score is
    a single number."""

    def __init__(self, spec: ClassifierSpec, parameters: Parameters) -> None:
        def plain(place: str) -> tuple[Tensor, Tensor | None]:
            linear = parameters.linear(place)
            bias = parameters.read(linear.biases).float() if linear.bias else None
            return parameters.read(linear.weights).float(), bias

        self.dense = plain("classifier.dense") if spec.dense else None
        self.output = plain("classifier.output")

    def __call__(self, states: Tensor) -> Tensor:
        """[texts, hidden] fp32 to logits, [texts, 1] fp32."""
        if self.dense is not None:
            states = F.linear(states, *self.dense).tanh()
        return F.linear(states, *self.output)
