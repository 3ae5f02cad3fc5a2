"""HTTP/1.1: the server, strict about what it reads and bounded in what it keeps, and the upstream side."""
