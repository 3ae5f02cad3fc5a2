"""The operators that take a step's time: one folder each, ``__init__.py`` with its signature and ``torch.py`` with the
implementation that defines what is correct, runs anywhere, and is what faster ones are compared with."""
