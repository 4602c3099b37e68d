"""Scheduler, page tables and process host: standard library and the seam (`model.batch`) only."""
