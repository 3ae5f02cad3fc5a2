"""``python to_gguf.py MODEL FILE KIND``: a checkpoint of Qwen2, Qwen3 or Qwen3-MoE as GGUF, quantised by llama.cpp."""

import json
import sys
from pathlib import Path

import gguf
import numpy

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main(model: Path, file: Path, kind: str) -> None:
    whole = file if kind == "BF16" else file.with_name(file.name.replace(kind, "BF16"))
    if not whole.exists():
        write(model, whole)
    if kind != "BF16":
        import llama_cpp

        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        if llama_cpp.llama_model_quantize(str(whole).encode(), str(file).encode(), params) != 0:
            raise SystemExit("llama_model_quantize failed")


def write(model: Path, file: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(file, {"qwen3_moe": "qwen3moe"}.get(config["model_type"], config["model_type"]))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    words = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    words += [f"<unused{i}>" for i in range(len(words), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    experts = {}
    for name, words in bf16_tensors(model / "model.safetensors"):
        if ".experts." in name:
            prefix, _, expert = name.partition(".experts.")
            number, _, matrix = expert.partition(".")
            experts.setdefault(f"{prefix}.{matrix}", {})[int(number)] = words
        elif words.ndim == 1 or name.endswith(".mlp.gate.weight"):  # llama.cpp wants routers in fp32
            writer.add_tensor(renamed(name), (words.astype(numpy.uint32) << 16).view(numpy.float32))
        else:
            add_bf16(writer, renamed(name), words)
    for name, matrices in experts.items():
        stacked = numpy.stack([matrices[number] for number in range(len(matrices))])
        add_bf16(writer, renamed(name).replace(".weight", "_exps.weight"), stacked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_bf16(writer, name: str, words) -> None:
    writer.add_tensor(name, words.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def bf16_tensors(file: Path):
    """Each tensor's name and its 16-bit words, without torch: the format is a JSON header and then the bytes."""
    data = numpy.memmap(file, numpy.uint8, "r")
    size = int(data[:8].view(numpy.uint64)[0])
    for name, entry in json.loads(data[8 : 8 + size].tobytes()).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            yield name, numpy.array(data[begin:end]).view(numpy.uint16).reshape(entry["shape"])


def renamed(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(middle)]}.{last}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
