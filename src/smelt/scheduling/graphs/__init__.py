"""Steps on the graph of one module's forward.

Read `editing`, then `scheduled`.
"""
