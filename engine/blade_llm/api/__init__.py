"""HTTP: the OpenAI-compatible public port and the internal port of one server. No torch."""
