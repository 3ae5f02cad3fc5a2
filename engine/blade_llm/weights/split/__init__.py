"""Checkpoints split ahead for tensor parallelism: a folder for each rank, so that a rank reads, copies or mounts its
own bytes alone. :mod:`blade_llm.weights.checkpoint` opens such a folder; this package says what one holds, makes one,
and joins one into a whole checkpoint again. No torch, but to read ``.bin`` files.
"""
