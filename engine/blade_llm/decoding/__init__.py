"""Speculative decoding: what proposes draft tokens, and how many are worth verifying. No torch."""
