"""An ingot as a C library: tables of its plans, its kernels, and a small runtime that is compiled beside them."""
