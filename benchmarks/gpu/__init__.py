"""What only a GPU can show: each Triton kernel against torch, the engine against the machine's limits, and against
transformers' continuous batching. ``make gpu``; see :mod:`benchmarks.gpu.__main__`."""
