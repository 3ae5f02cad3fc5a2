"""Local HTTP servers that misbehave, and a network in which names and public addresses lead to them."""
