"""Random heads that draft from hidden states, in the layouts of public checkpoints, and what transformers' layers say
that they draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from engine_support.families import ROWS, save_row
from engine_support.tiny_models import SHAPE, load_reference
from safetensors.torch import load_file, save_file
from torch import Tensor

NORM_EPS = 1e-6
MTP_ROWS = ("mimo", "qwen3", "qwen3-moe", "deepseek-v3")
_LAYOUTS: dict[str, dict[str, Any]] = {
    "mimo": {
        "layer": "model.mtp_layers.0.",
        "embedding": "model.mtp_layers.0.token_layernorm.weight",
        "state": "model.mtp_layers.0.hidden_layernorm.weight",
        "projection": "model.mtp_layers.0.input_proj.weight",
        "norm": "model.mtp_layers.0.final_layernorm.weight",
        "states_first": True,
        "zero_first": True,
        "normalised": True,
    },
    "qwen3": {
        "layer": "mtp.layers.0.",
        "embedding": "mtp.pre_fc_norm_embedding.weight",
        "state": "mtp.pre_fc_norm_hidden.weight",
        "projection": "mtp.fc.weight",
        "norm": "mtp.norm.weight",
        "normalised": True,
    },
    "deepseek-v3": {
        "layer": "model.layers.3.",
        "embedding": "model.layers.3.enorm.weight",
        "state": "model.layers.3.hnorm.weight",
        "projection": "model.layers.3.eh_proj.weight",
        "norm": "model.layers.3.shared_head.norm.weight",
        "zero_first": True,
    },
}
_LAYOUTS["qwen3-moe"] = _LAYOUTS["qwen3"]


def _weight(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.rand(shape, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) * 0.12


def _write_config(folder: Path, fields: dict[str, Any]) -> None:
    path = folder / "config.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **fields}))


def save_with_mtp(folder: Path, row: str) -> None:
    """A random model of a family with a layer for multi-token prediction."""
    save_row(folder, ROWS[row])
    layout, generator = _LAYOUTS[row], torch.Generator().manual_seed(7)
    tensors = load_file(folder / "model.safetensors")
    last = f"model.layers.{SHAPE['num_hidden_layers'] - 1}."
    size = SHAPE["hidden_size"]
    for name, tensor in list(tensors.items()):
        if name.startswith(last):
            tensors[layout["layer"] + name.removeprefix(last)] = _weight(tuple(tensor.shape), generator)
    for what in ("embedding", "state", "norm"):
        tensors[layout[what]] = _weight((size,), generator)
    tensors[layout["projection"]] = _weight((size, 2 * size), generator)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _write_config(folder, {"num_nextn_predict_layers": 1})


def save_eagle3(
    folder: Path,
    *,
    speculators: bool = False,
    vocab_size: int = 64,
    model_vocab_size: int = SHAPE["vocab_size"],
    inner: int = 96,
    **fields: Any,
) -> None:
    """A random head of EAGLE-3 for a model of :data:`~engine_support.tiny_models.SHAPE`, that drafts
    ``vocab_size`` of ``model_vocab_size`` tokens. ``speculators``: in the format of vLLM's speculators."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(11)
    size, heads, kv_heads, dim = SHAPE["hidden_size"], 4, 2, 16
    shape = {
        "hidden_size": size,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": NORM_EPS,
        "vocab_size": model_vocab_size,
        "max_position_embeddings": 64,  # they say 2048 and are used for longer contexts
    }
    own = {"draft_vocab_size": vocab_size, **fields}
    if speculators:
        config = {"architectures": ["Eagle3Speculator"], "transformer_layer_config": shape, **own}
    else:
        config = {"architectures": ["LlamaForCausalLMEagle3"], **shape, **own}
    _write_config(folder, config)
    layer = "layers.0" if speculators else "midlayer"
    shapes = {
        "fc.weight": (size, 3 * size),
        "norm.weight": (size,),
        "lm_head.weight": (vocab_size, size),
        f"{layer}.input_layernorm.weight": (size,),
        f"{layer}.hidden_norm.weight": (size,),
        f"{layer}.post_attention_layernorm.weight": (size,),
        f"{layer}.self_attn.q_proj.weight": (heads * dim, 2 * size),
        f"{layer}.self_attn.k_proj.weight": (kv_heads * dim, 2 * size),
        f"{layer}.self_attn.v_proj.weight": (kv_heads * dim, 2 * size),
        f"{layer}.self_attn.o_proj.weight": (size, heads * dim),
        f"{layer}.mlp.gate_proj.weight": (inner, size),
        f"{layer}.mlp.up_proj.weight": (inner, size),
        f"{layer}.mlp.down_proj.weight": (size, inner),
    }
    tensors = {name: _weight(each, generator) for name, each in shapes.items()}
    if vocab_size < model_vocab_size:
        tokens = torch.randperm(model_vocab_size, generator=generator)[:vocab_size].sort().values
        tensors["d2t"] = tokens - torch.arange(vocab_size)
        listed = torch.zeros(model_vocab_size, dtype=torch.bool)
        listed[tokens] = True
        tensors["t2d"] = listed
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


class _Reference:
    """What a head drafts after some tokens, greedily, all computed anew each time."""

    def __init__(self, target: Any) -> None:
        self.target = target

    @torch.no_grad()
    def draft(self, tokens: list[int], count: int) -> list[int]:
        states = self._states_of(tokens)[:-1]
        ids, drafted = list(tokens[1:]), []
        for _ in range(count):
            out = self._layer(self.target.get_input_embeddings()(torch.tensor(ids)), states)
            drafted.append(int(self._logits(out[-1:])[0].argmax()))
            ids.append(drafted[-1])
            states = torch.cat([states, self._passed_on(out[-1:])])
        return drafted

    def _states_of(self, tokens: list[int]) -> Tensor:
        raise NotImplementedError

    def _layer(self, embedded: Tensor, states: Tensor) -> Tensor:
        raise NotImplementedError

    def _logits(self, out: Tensor) -> Tensor:
        raise NotImplementedError

    def _passed_on(self, out: Tensor) -> Tensor:
        return out


class MTPReference(_Reference):
    """By transformers' own layer of the family."""

    def __init__(self, folder: Path, row: str) -> None:
        super().__init__(load_reference(folder) if row != "mimo" else _as_qwen2(folder))
        self.layout = _LAYOUTS[row]
        self.tensors = load_file(folder / "model.safetensors")
        base = self.target.model
        self.layer, prefix = base.layers[-1], self.layout["layer"]
        self.plain = {name: each.clone() for name, each in self.layer.state_dict().items()}
        own = {name: self.tensors[prefix + name] for name in self.plain if prefix + name in self.tensors}
        self.own = own or {name: self._fused(name) for name in self.plain}
        for name in self.plain.keys() - self.own.keys():
            self.own[name] = self._fused(name)

    def _fused(self, name: str) -> Tensor:
        """Of all experts together, as transformers 5 has them, from each one's own."""
        prefix = self.layout["layer"] + "mlp.experts."
        count = len({each.split(".")[-3] for each in self.tensors if each.startswith(prefix)})

        def of(expert: int, part: str) -> Tensor:
            return self.tensors[f"{prefix}{expert}.{part}.weight"]

        if name.endswith("gate_up_proj"):
            return torch.stack([torch.cat([of(i, "gate_proj"), of(i, "up_proj")]) for i in range(count)])
        return torch.stack([of(i, "down_proj") for i in range(count)])

    def _states_of(self, tokens: list[int]) -> Tensor:
        self.layer.load_state_dict(self.plain)
        states: Tensor = self.target.model(torch.tensor([tokens])).last_hidden_state[0]
        return states

    def _layer(self, embedded: Tensor, states: Tensor) -> Tensor:
        layout = self.layout
        if layout.get("zero_first"):
            embedded = embedded.clone()
            embedded[0] = 0
        both = [_rms(embedded, self.tensors[layout["embedding"]]), _rms(states, self.tensors[layout["state"]])]
        joined = torch.cat(both[::-1] if layout.get("states_first") else both, dim=1)
        x = joined @ self.tensors[layout["projection"]].T
        self.layer.load_state_dict(self.own)
        base, seen = self.target.model, []
        others, base.layers = base.layers, torch.nn.ModuleList([self.layer])
        hook = self.layer.register_forward_hook(lambda module, inputs, out: seen.append(out))
        index, self.layer.self_attn.layer_idx = self.layer.self_attn.layer_idx, 0
        depth, base.config.num_hidden_layers = base.config.num_hidden_layers, 1
        try:
            base(inputs_embeds=x[None], use_cache=False)
        finally:
            hook.remove()
            base.layers, self.layer.self_attn.layer_idx, base.config.num_hidden_layers = others, index, depth
        out = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
        return out.reshape(-1, out.shape[-1])

    def _logits(self, out: Tensor) -> Tensor:
        logits: Tensor = self.target.lm_head(_rms(out, self.tensors[self.layout["norm"]]))
        return logits

    def _passed_on(self, out: Tensor) -> Tensor:
        return _rms(out, self.tensors[self.layout["norm"]]) if self.layout.get("normalised") else out


def _as_qwen2(folder: Path) -> Any:
    """MiMo, without its layer for multi-token prediction, is a Qwen2."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    fields = json.loads((folder / "config.json").read_text())
    model = Qwen2ForCausalLM(Qwen2Config(**{**fields, "model_type": "qwen2"}))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: each for name, each in tensors.items() if "mtp_layers" not in name})
    return model.eval()


class Eagle3Reference(_Reference):
    """By transformers' attention of Llama, made as wide as the head's."""

    def __init__(self, folder: Path, target: Path) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__(load_reference(target))
        fields = json.loads((folder / "config.json").read_text())
        self.fields = {**fields, **fields.get("transformer_layer_config", {})}
        config = LlamaConfig(**{name: each for name, each in self.fields.items() if name != "architectures"})
        config._attn_implementation = "eager"
        self.tensors = load_file(folder / "model.safetensors")
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
        for name in ("q_proj", "k_proj", "v_proj"):
            outputs = getattr(self.layer.self_attn, name).out_features
            setattr(self.layer.self_attn, name, torch.nn.Linear(2 * config.hidden_size, outputs, bias=False))
        prefix = "layers.0." if "layers.0.hidden_norm.weight" in self.tensors else "midlayer."
        own = {name.removeprefix(prefix): each for name, each in self.tensors.items() if name.startswith(prefix)}
        self.hidden_norm = own.pop("hidden_norm.weight")
        self.layer.load_state_dict(own, assign=True)

    def _states_of(self, tokens: list[int]) -> Tensor:
        states = self.target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        layers = len(states) - 1
        after = self.fields.get("eagle_aux_hidden_state_layer_ids") or (2, layers // 2, layers - 3)
        return torch.cat([states[each][0] for each in after], dim=1) @ self.tensors["fc.weight"].T

    def _layer(self, embedded: Tensor, states: Tensor) -> Tensor:
        count, layer = len(states), self.layer
        normed = _rms(states, self.hidden_norm)
        residual = normed if self.fields.get("norm_before_residual") else states
        joined = torch.cat([layer.input_layernorm(embedded), normed], dim=1)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        angles = self.rotary(joined, torch.arange(count)[None])
        attended = layer.self_attn(joined, position_embeddings=angles, attention_mask=mask)[0][0]
        residual = residual + attended
        out: Tensor = residual + layer.mlp(layer.post_attention_layernorm(residual))
        return out

    def _logits(self, out: Tensor) -> Tensor:
        own = _rms(out, self.tensors["norm.weight"]) @ self.tensors["lm_head.weight"].T
        if "d2t" not in self.tensors:
            return own
        tokens = self.tensors["d2t"] + torch.arange(len(self.tensors["d2t"]))
        logits = torch.full((len(own), SHAPE["vocab_size"]), float("-inf"))
        logits[:, tokens] = own
        return logits
