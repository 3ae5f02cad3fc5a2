"""LoRA adapters of a service: what is declared, where each is placed, and how engines come to have it. Pure."""
