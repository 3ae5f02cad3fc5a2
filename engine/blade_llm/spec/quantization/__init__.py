"""Forms in which weights and the KV cache are quantised, free of torch."""
