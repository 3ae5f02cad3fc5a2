"""Tools in requests: what a model may call, the prompt for it, guided decoding of calls, parsed output."""
