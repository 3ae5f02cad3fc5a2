"""Router replica sync: replicas tell each other what they have sent where, so that each decides as if it were alone."""
