"""Processes and sockets of the HTTP side: applications, routes, internal port, OpenAPI, supervision."""
