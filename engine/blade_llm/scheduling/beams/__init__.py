"""Beam search: the search itself, and the slots and blocks of its beams."""
