"""Policies by hash: a bounded-load hash ring, consistent hashing of prompts and session affinity."""
