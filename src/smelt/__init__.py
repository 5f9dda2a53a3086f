"""Smelt."""
