"""One HTTP port: its sockets, who may use it, and the server that bounds its connections."""
