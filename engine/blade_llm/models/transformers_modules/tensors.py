"""Where a checkpoint has the tensors of transformers' modules: mostly under their own names."""

from __future__ import annotations

from typing import Any

from torch import nn

from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap, TensorPart


def modules_tensor_map(model: Any) -> TensorMap:
    """Linear layers by the names of their modules; everything else, also tables that are saved, by its own name.

    A tensor that several modules share has the first one's name. A linear layer that shares its weight is no place of
    its own: it follows what it is tied to.
    """
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    linears, tensors = {}, {}
    for name, module in model.named_modules():
        if is_linear(module) and first[id(module.weight)] == f"{name}.weight":
            linears[name] = LinearMap((LinearPart(name, *module.weight.shape),), module.bias is not None)
    saved = set(model.state_dict())
    others = [*model.named_parameters(), *((name, table) for name, table in model.named_buffers() if name in saved)]
    for name, tensor in others:
        if name.rpartition(".")[0] not in linears:
            tensors[name] = TensorPart(name, tuple(tensor.shape))
    return TensorMap(linears, tensors, optional_prefix=f"{model.base_model_prefix}.")


def is_linear(module: nn.Module) -> bool:
    """Whether it is nothing but ``x @ weight.T + bias``; a subclass may compute something else."""
    return type(module) is nn.Linear
