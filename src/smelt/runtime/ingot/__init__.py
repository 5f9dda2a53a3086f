"""Ingots: saved programs in one file, read with what a shipped model needs and nothing more. See docs/ingots.md."""
