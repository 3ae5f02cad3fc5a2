"""How much quantisation costs a model in perplexity, as served: ``python -m benchmarks.quantization``.

A small model is trained here on real English prose, made smaller by ``blade_llm_quantize`` and scored on held-out text
by the engine itself, so that rounded activations and KV caches count as well as weights.
"""
