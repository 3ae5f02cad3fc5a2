"""LoRA adapters (Hu et al., arXiv 2106.09685): read as PEFT writes them, applied beside the base model's weights."""
