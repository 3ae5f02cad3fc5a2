"""Linear layers of quantised weights on GPUs, in Triton and cuBLAS.

Weights alone quantised (4 and 8 bits affine, e4m3): :mod:`.packed` packs and multiplies. Activations rounded as well:
:func:`.int8.int8_linear`, :func:`.float8.fp8_linear` and :func:`.float8.fp8_block_linear`.
"""
