"""Placement of LoRA adapters in simulated time, beside the rules of other control planes."""
