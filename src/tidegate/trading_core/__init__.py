"""The trading core: balances in memory, decisions in a log, a process of its own."""
