"""Tools in requests: what a model may call, how it is told, how its answers are guided and written."""
