"""From safetensors files to the tensors that a model computes with."""
