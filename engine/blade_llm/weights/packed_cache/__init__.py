"""Packed weights on disk: the first start of a model writes them, later starts and other replicas map the same file.

Only what the native CPU kernels pack is kept (:mod:`blade_llm.kernels.linear.native`). A file holds for one content of
the model's files, one instruction set and one version of this code; whatever does not fit is packed anew.
"""
