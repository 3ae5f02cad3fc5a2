"""Following engines: what each one runs, serves and has in its prompt cache, ours exactly, others as far as they tell.

Nothing here is on the way of a request. What is learnt lies ready where policies look: in the endpoint's fields and in
the index of prompt caches.
"""

from blade_router.engines.followers import Followers
from blade_router.engines.kv_index import KvIndex

__all__ = ["Followers", "KvIndex"]
