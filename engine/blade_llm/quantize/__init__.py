"""What ``blade_llm_quantize`` does: a checkpoint becomes a smaller one in the compressed-tensors format, tensor by
tensor. The mathematics is in :mod:`blade_llm.quantization`.
"""
