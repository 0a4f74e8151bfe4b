"""Planted bugs: each a patch of production code from outside, with its story as the docstring."""
