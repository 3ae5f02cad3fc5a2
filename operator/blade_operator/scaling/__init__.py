"""How many engines a service needs: from what its routers measure, what one engine can do, and how fast one starts.

Pure functions of a load, a policy and what was remembered, so that the same code decides in a cluster, in the local
runtime and in the simulator (``benchmarks/scaling``).
"""
