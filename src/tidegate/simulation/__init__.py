"""The proof by simulation: the real engine, core and flows in virtual time, among failures."""
