"""The atlas: how architectures look as graphs, which optimisations apply to them, and what each gives."""
