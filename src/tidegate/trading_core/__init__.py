"""The trading core: a separate process with balances in memory and decisions in a log."""
