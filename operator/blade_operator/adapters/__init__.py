"""LoRA adapters of a service: where each is to be, what is to be done for that, and what is said of it. Pure."""
