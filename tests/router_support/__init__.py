"""What the router's tests and its benchmark share: a mock engine, a router in this process, a raw HTTP client."""
