"""The wire protocol between engine, router and operator.

Names and message shapes only: paths, headers, labels, ports, metric names, and the structs that cross a process or a
container boundary. Nothing here behaves; it depends on the standard library and msgspec alone, so that every program
can import it for free.
"""
