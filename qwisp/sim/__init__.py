"""The simulator: the scheduler driven by a cost model instead of a machine."""
