"""The engine beside the best CPU engines there are: the same model, prompts, threads and KV memory, in one run.

``make bench`` runs it; ``QUICK=1`` keeps to OpenVINO GenAI and transformers, ``BEFORE=FOLDER`` compares with an
earlier checkout of this repository alone. ``docs/performance.md`` explains the rows.
"""
