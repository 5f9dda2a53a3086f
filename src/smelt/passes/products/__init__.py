"""One spelling of products, and products that are merged, hoisted or narrowed.

Read `spell_linear` first.
"""
