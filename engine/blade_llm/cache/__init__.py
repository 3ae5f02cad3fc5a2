"""KV blocks, the prefix cache and the arithmetic of both: bookkeeping only, the tensors are the runner's."""
