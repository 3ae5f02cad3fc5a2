"""The upstream side of HTTP/1.1: connections to engines, their pool and their errors."""
