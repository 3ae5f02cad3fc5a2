"""Plain data that every part of the operator shares: objects and their names, pods, observed state and plans."""
