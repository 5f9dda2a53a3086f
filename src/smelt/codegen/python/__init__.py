"""Graphs as readable Python that imports only torch."""

from smelt.codegen.python.source import python_source

__all__ = ["python_source"]
