"""``blade_llm_fit``: what a model takes of a GPU or a memory limit that need not be here, from its ``config.json``."""
