"""Deciding, without any I/O: the observed state of one service goes in, a plan of writes comes out."""
