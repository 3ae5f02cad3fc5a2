"""Engine watchers: load, models and prefix-cache content of each engine, exact for BladeLLM, partial for others.

Nothing here is on the request path. The results are kept where policies read them: in the endpoint's load report and
in the prefix-cache index.
"""

from blade_router.engines.kv_index import KvIndex
from blade_router.engines.watchers import EngineWatchers

__all__ = ["EngineWatchers", "KvIndex"]
