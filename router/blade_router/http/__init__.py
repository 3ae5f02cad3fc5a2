"""The client's side of HTTP/1.1: strict about what it reads, bounded in what it keeps, and cheap."""
