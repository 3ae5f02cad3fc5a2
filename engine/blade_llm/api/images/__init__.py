"""The images of requests in an API-server process: what a server takes, and from their URLs to pixels and image tokens.

Knows nothing of HTTP or of the routes; :mod:`blade_llm.api.prompt_images` does the rest.
"""
