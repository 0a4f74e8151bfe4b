"""The systems that move money: one package per system, with its SQL beside it."""
