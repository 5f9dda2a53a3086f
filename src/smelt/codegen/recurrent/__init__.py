"""Recurrent layers: the kernel that runs all steps of a layer."""
