"""Routing policies compared in simulated time: the router's own objects, simulated engines, other routers' rules.

``make bench-routing`` runs it; ``docs/routing-policies.md`` has what it prints.
"""
