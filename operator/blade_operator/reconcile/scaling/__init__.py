"""How many engines a service is to have, from its mode, its routers' signals and its limits."""
