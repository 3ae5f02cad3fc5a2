"""KV blocks and the prompt cache: bookkeeping only, the tensors are the runner's."""
