"""Answers that follow a schema, an expression, a choice or a grammar, by llguidance. No torch.

The API server validates (:mod:`~blade_llm.sampling.guided.validation`), the engine process compiles and follows
(:mod:`~blade_llm.sampling.guided.grammars`); both read a grammar spec through :mod:`~blade_llm.sampling.guided.text`.
"""
