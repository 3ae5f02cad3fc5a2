"""The tensor map of layers that not every model has."""
