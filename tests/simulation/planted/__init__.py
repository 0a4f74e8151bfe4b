"""Planted bugs: each is a patch of production code, and its docstring describes the bug."""
