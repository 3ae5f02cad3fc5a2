"""Images in a prompt, and what makes embeddings of them."""
