"""Passes: one a file, each a frozen `Pass` with its picture; `smelt.compiler` puts them in order."""
