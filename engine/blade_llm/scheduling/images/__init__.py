"""The images of prompts: when each is encoded, and how long its embeddings are kept."""
