"""Families in the line of GPT-2."""
