"""Tidegate moves money between systems that cannot share a transaction."""
