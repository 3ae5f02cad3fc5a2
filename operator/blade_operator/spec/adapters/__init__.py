"""LoRA adapters in the API: those that an ``LLMService`` lists, and ``LoRAAdapter`` objects that it selects."""
