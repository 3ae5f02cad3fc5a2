"""Images in a runner: their encoding, their embeddings, and the positions of prompts that have some."""
