"""Simulation: the real engine, core and flows in virtual time, with injected faults.

`scenario.run(seed)` runs one seed with random faults. `scenario.run(seed, FaultPlan({3:
Fault.LOST}))` runs it with one fault only: the call with index 3 is lost. Both return a
`SeedResult`; its `fault` is None if no check failed. To verify that a bug would be found, patch
the code under test where it is used, and run seeds until one has a fault.
"""
