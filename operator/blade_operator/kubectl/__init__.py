"""``kubectl llm``: what people ask of their LLM services daily, on a cluster or the local runtime."""
