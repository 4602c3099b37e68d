"""`noria simulate`: the scheduler under a virtual clock, with the measured cost of steps in place of a model."""
