"""Helpers of every route: errors, request fields and bodies, the served model, shared stats."""
