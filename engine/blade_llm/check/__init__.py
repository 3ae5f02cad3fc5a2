"""What ``blade_llm_check`` checks before a model is served: one module per item, and the report they go into."""
