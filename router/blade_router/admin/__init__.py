"""The router's own routes: health, metrics, signals, the status page and ``/debug/route``, on the admin port."""
