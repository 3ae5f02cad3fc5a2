"""A model of what a step costs on several GPUs: ``python -m benchmarks.engine.parallel_cost``.

No GPU is needed, and nothing is measured: bytes and operations of a rank come from the engine's own configuration of
that rank, rates of one GPU from ``benchmarks/results/gpu_engine.json``, the host's time from
``benchmarks/results/rank_host_time.json``, and latencies and bandwidths between GPUs from what others published
(:mod:`~benchmarks.engine.parallel_cost.hardware` names each). A collective of ``n`` bytes takes alpha + n / beta
(Hockney, Parallel Computing 20(3), 1994), with an alpha and a beta for each algorithm.
"""
