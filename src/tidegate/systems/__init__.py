"""The only place where money moves: one module per outside system, its SQL beside it."""
