"""Benchmarks: Smelt and its peers side by side on the same models, with the floors that the machine sets.

models      what is run          systems   who runs it          startup   first results in fresh processes
harvest     products of a model  floors    what they cost alone measure   interleaved timing
accuracy    errors to float64    rows      the JSON             report    table and plot
suite       puts it in order
"""
