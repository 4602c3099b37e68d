"""Kernels in C for CPUs: their sources, how they are built and called, and the memory layout that they read."""
