"""A model that transformers' own modules compute, as the runner calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from blade_llm.layers.step import StepMetadata
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.models.transformers_modules.attention import PagedAttention, connect
from blade_llm.models.transformers_modules.build import build_modules, read_config
from blade_llm.models.transformers_modules.modules import Projection, run_decoder, take_decoder
from blade_llm.models.transformers_modules.tensors import is_linear
from blade_llm.spec.modules import ModulesSpec


class TransformersModel:
    """Token ids in, hidden states out; :meth:`logits` of those that are sampled."""

    classifier = None

    def __init__(
        self, spec: ModulesSpec, parameters: Parameters, device: torch.device, dtype: torch.dtype, method: LinearMethod
    ) -> None:
        config = read_config(str(spec.raw["architectures"][0]), spec.raw)
        model = build_modules(config, dtype)
        self._attention = PagedAttention()
        self._fill(model, parameters, device, method)
        connect(model, self._attention)
        self._decoder = take_decoder(model)
        self._head = model
        kept = [*model.parameters(), *model.buffers(), *self._decoder.parameters(), *self._decoder.buffers()]
        modules = [*model.modules(), *self._decoder.modules()]
        linears = [module.linear for module in modules if isinstance(module, Projection)]
        shared = {tensor.data_ptr() for tensor in kept}
        self.nbytes = sum({id(tensor): tensor.nbytes for tensor in kept}.values()) + sum(
            linear.nbytes for linear in linears if linear.weight is None or linear.weight.data_ptr() not in shared
        )

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """Normalised hidden states, [selected, hidden]; as :class:`~blade_llm.models.model.Model` says."""
        self._attention.step = step
        try:
            hidden = run_decoder(self._decoder, token_ids, step.positions)
        finally:
            self._attention.step = None
        return hidden if selected is None else hidden.index_select(0, selected)

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, vocabulary]: the output matrix, and what the model does to its results."""
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def own_logits(self, hidden: Tensor) -> Tensor:
        """The same: there is one rank."""
        return self.logits(hidden)

    def _fill(self, model: Any, parameters: Parameters, device: torch.device, method: LinearMethod) -> None:
        """Give modules their tensors; linear layers become :class:`Projection`."""
        first = {id(parameter): name for name, parameter in model.named_parameters()}
        loaded: dict[str, nn.Parameter] = {}

        def read(name: str) -> nn.Parameter:
            if name not in loaded:
                loaded[name] = nn.Parameter(parameters.tensor(name), requires_grad=False)
            return loaded[name]

        for name, module in list(model.named_modules()):
            prefix = f"{name}." if name else ""
            if name in parameters.map.linears:
                linear = method.create(parameters, parameters.linear(name))
                model.set_submodule(name, Projection(linear, self._attention))
                continue
            if is_linear(module) and module.bias is None:  # tied
                weight = read(first[id(module.weight)])
                model.set_submodule(name, Projection(method.shared(weight.data), self._attention))
                continue
            for key, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[key] = read(first[id(parameter)])
            for key, table in list(module._buffers.items()):
                if table is None:
                    continue
                if prefix + key in parameters.map.tensors:
                    table = parameters.tensor(prefix + key).to(table.dtype)
                module._buffers[key] = table.to(device)
