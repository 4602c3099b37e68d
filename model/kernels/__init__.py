"""Kernels: in portable C for CPUs (cpu/), in Triton for CUDA devices (cuda/)."""
