"""Measure any server with an OpenAI API: latencies, throughput, goodput, and the highest rate it bears.

Nothing here knows the engine: all is seen through HTTP alone, so that figures of different servers compare.
The console script is :mod:`blade_llm.cli.benchmark`.
"""
