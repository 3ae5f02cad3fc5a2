"""LoRA adapters of a step."""
