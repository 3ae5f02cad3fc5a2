"""Quantisation algorithms as functions on tensors: round to nearest, GPTQ, AWQ, SmoothQuant, SmoothQuant+ and fp8.

They know linear layers (weights [out, in]) and what calibration saw of their inputs, but no models and no files.
"""
