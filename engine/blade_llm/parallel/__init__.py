"""Ranks: processes that compute one model together, each a part of every layer."""
