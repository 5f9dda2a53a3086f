"""What torch's library computes, and how its parts are reached: products, schemas, shims, compilers.

Read `schemas` first.
"""
