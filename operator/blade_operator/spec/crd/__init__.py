"""The CustomResourceDefinition and what follows from it: schema, defaults, printer columns and the field reference.

``python -m blade_operator.spec.crd.generate`` writes the generated files.
"""
