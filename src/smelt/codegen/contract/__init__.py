"""Matrix products as own kernels: tiles of registers, panels of weights, products with few rows."""
