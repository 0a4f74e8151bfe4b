"""The proof by simulation: the real engine, core and flows in virtual time, among failures.

`scenario.run(seed)` plays one seed by dice. `scenario.run(seed, Plan({3: Fault.LOST}))` plays it
calmly, but for what the plan says of its third call after the first. Either gives a `Result`,
whose `fault` is None if all went well. To see that a bug would be found, patch the code under
test where it is used, and run seeds until one has a fault.
"""
