"""One program for each engine, run by that engine's own Python; see `serve.py` for the requests it gets."""
