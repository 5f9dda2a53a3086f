"""Writes ingots: a program's graphs, weights, structures and native code, for machines other than this one, too."""
