"""What a JSON Schema means, written in the keywords that llguidance follows.

Annotations are left out, formats become patterns, objects are closed, names of properties become properties:
:mod:`~blade_llm.sampling.guided.json_schema.rewriting` goes through a schema, the others each know one of these.
"""
