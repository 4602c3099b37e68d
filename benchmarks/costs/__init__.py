"""Measures what a step costs on this machine, for `noria simulate`, and compares its predictions with a server."""
