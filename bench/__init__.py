"""The benchmark: Tidegate, the specifications as printed, and what people would use instead."""
