"""A draft head for the demo model, as EAGLE-3 describes it (Li et al., arXiv 2503.01840): its layer, loss and files.

At position p it reads the embedding of token p + 1 beside what the model's layers say at position p, and predicts
token p + 2. From there it goes on with its own output where it has no state of the model, so it is trained on that,
too: the paper's training-time test.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu, softmax

from .conversations import Example, padded

AFTER = (1, 2, 3)
"""Its states are those after so many layers of the model."""
VOCAB_SIZE = 1024
"""Tokens that it can draft."""
STEPS = 4
"""Draft tokens in a row that it is trained for."""
HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 4, 2, 32, 256
ROPE_THETA = 10000.0

KeysValues = tuple[Tensor, Tensor]
"""[conversations, KV_HEADS, positions, HEAD_DIM] each."""


class Attention(nn.Module):
    """Grouped-query attention over input that is twice as wide as its output."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * size, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(2 * size, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(2 * size, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, size, bias=False)

    def forward(self, x: Tensor, earlier: list[KeysValues]) -> Tensor:
        """`earlier`: of the draft tokens before this one; gets those of this one appended.

        The step computes all positions at once, each as if drafting had begun len(earlier) positions before it: up to
        there keys are those of the first step, which read the model's states, then one of each step after it.
        """
        queries = rotated(split(self.q_proj(x), HEADS))
        earlier.append((rotated(split(self.k_proj(x), KV_HEADS)), split(self.v_proj(x), KV_HEADS)))
        repeated = [tuple(each.repeat_interleave(HEADS // KV_HEADS, 1) for each in step) for step in earlier]
        (keys, values), drafted = repeated[0], repeated[1:]
        # What wraps around reaches only the first positions, which belong to no answer.
        aligned = [[each.roll(len(drafted) - 1 - step, 2) for each in pair] for step, pair in enumerate(drafted)]
        length = x.shape[1]
        unseen = torch.ones(length, length, dtype=torch.bool).triu(1 - len(drafted))
        scores = [(queries @ keys.mT).masked_fill(unseen, float("-inf"))]
        scores += [(queries * key).sum(-1, keepdim=True) for key, _ in aligned]
        weights = softmax(torch.cat(scores, -1) * HEAD_DIM**-0.5, -1)
        seen = weights[..., :length] @ values
        for step, (_, value) in enumerate(aligned):
            seen = seen + weights[..., length + step, None] * value
        return self.o_proj(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Gated, with SiLU."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(size, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """The decoder layer: attention over embedding and state side by side, the state alone as its residual."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = MLP(size)

    def forward(self, embedded: Tensor, states: Tensor, earlier: list[KeysValues]) -> Tensor:
        joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], -1)
        states = states + self.self_attn(joined, earlier)
        return states + self.mlp(self.post_attention_layernorm(states))  # type: ignore[no-any-return]


class Head(nn.Module):
    """The head of one model; parameters have the names of the public layout."""

    def __init__(self, target: Any, tokens: Tensor) -> None:
        """`target`: the model, which stays as it is; `tokens`: those that it can draft, in order."""
        super().__init__()
        size, eps = target.config.hidden_size, target.config.rms_norm_eps
        self.fc = nn.Linear(len(AFTER) * size, size, bias=False)
        self.midlayer = Layer(size, eps)
        self.norm = nn.RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, len(tokens), bias=False)
        self.lm_head.weight.data.copy_(target.get_output_embeddings().weight[tokens])
        self.tokens = tokens

    def forward(self, embedded: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """[conversations, positions, hidden] after each of so many steps, of all positions at once.

        `embedded`: of the token after each position; `states`: [conversations, positions, len(AFTER) * hidden].
        """
        outputs: list[Tensor] = []
        earlier: list[KeysValues] = []
        state = self.fc(states)
        for _ in range(steps):
            outputs.append(self.midlayer(embedded, state, earlier))
            state = outputs[-1].roll(1, 1)
        return outputs


def split(x: Tensor, heads: int) -> Tensor:
    """[conversations, positions, heads * HEAD_DIM] to [conversations, heads, positions, HEAD_DIM]."""
    return x.view(*x.shape[:2], heads, HEAD_DIM).transpose(1, 2)


def rotated(x: Tensor) -> Tensor:
    """With rotary position embedding, in halves as Llama has it."""
    frequencies = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(x.shape[2]), frequencies)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def frequent_tokens(run: list[list[Example]]) -> Tensor:
    """The VOCAB_SIZE most frequent tokens of the answers, in the vocabulary's order."""
    counts = Counter(
        token
        for batch in run
        for example in batch
        for token, learn in zip(example.ids, example.learn, strict=True)
        if learn
    )
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(by_count[:VOCAB_SIZE]))


def head_loss(target: Any, head: Head, batch: list[Example]) -> Tensor:
    """Mean cross-entropy with what the model says of the answers' tokens, where its choice is one that can be
    drafted."""
    ids, learn = map(torch.tensor, padded(batch))
    with torch.no_grad():
        said = target.model(ids, use_cache=False, output_hidden_states=True)
        states = torch.cat([said.hidden_states[after] for after in AFTER], -1)
        embedded = target.get_input_embeddings()(ids)
        wanted = learn[:, 1:-1] & learn[:, 2:]  # at position p the last token known is p + 1: it is of an answer, too
        logits = target.get_output_embeddings()(said.last_hidden_state[:, 1:-1][wanted])
        can = torch.isin(logits.argmax(-1), head.tokens)
        wanted[wanted.clone()] = can
        expected = softmax(logits[can][:, head.tokens], -1)
    outputs = head(embedded[:, 1:-1], states[:, :-2], STEPS)
    drafted = head.lm_head(head.norm(torch.stack([output[wanted] for output in outputs])))
    loss: Tensor = -(expected * drafted.log_softmax(-1)).sum(-1).mean()
    return loss


def save_head(head: Head, target: Any, folder: Path) -> None:
    """Write weights (bf16) and configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensors = {name: weight.detach().to(torch.bfloat16) for name, weight in head.named_parameters()}
    tensors["d2t"] = head.tokens - torch.arange(len(head.tokens))
    tensors["t2d"] = torch.isin(torch.arange(target.config.vocab_size), head.tokens)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target.config.hidden_size,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": target.config.rms_norm_eps,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": target.config.max_position_embeddings,
        "vocab_size": target.config.vocab_size,
        "draft_vocab_size": len(head.tokens),
        "eagle_aux_hidden_state_layer_ids": list(AFTER),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
