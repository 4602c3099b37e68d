"""Scheduler, page tables and the engine process. Knows the standard library, the seam and `model.machine` only."""
