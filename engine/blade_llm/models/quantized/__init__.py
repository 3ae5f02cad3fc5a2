"""Checkpoints with quantised weights: what ``quantization_config`` says of each layer, and how its tensors are read."""
