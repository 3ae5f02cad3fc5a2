"""Models that transformers' own modules compute, with the paged KV cache in the place of their attention."""
