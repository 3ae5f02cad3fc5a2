"""Requests as clients send them: headers, routing fields, prompt text, models and usage."""
