"""The wide suite: models of kinds that the benchmark's own do not have.

`wide_models` lists them; `wide_programs` has those that no configuration of `transformers` makes.
"""
