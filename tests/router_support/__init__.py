"""Support of the router's tests: mock engines, a router in this process, a raw HTTP client, a fake API server."""
