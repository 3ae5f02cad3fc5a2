"""The start of a runner: profile memory, plan the KV cache, warm up, autotune."""
