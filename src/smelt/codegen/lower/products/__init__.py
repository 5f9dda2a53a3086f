"""Matrix products in a plan: which kernel computes one, what is fused behind it, and packed weights.

Read `own_products` first.
"""
