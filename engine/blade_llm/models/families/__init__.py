"""One record for each family of models: how its ``config.json`` reads, and what its tensors are called. No torch."""
