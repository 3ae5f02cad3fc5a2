"""``quantize``: the Job that quantises a model, and its flags."""
