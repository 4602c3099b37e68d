"""Noria on a GPU that is not there: PyTorch's and Triton's real CUDA code on a simulated CUDA runtime (`cuda/sim.h`).

`make test-gpu-simulated` runs it. Kernels compute nothing, and there are two ways to go on from there:

- with `noop` the checks of numbers succeed and each sampled token is TOKEN: a whole server starts and answers;
- with `compute` each operation and each launch is also computed on the CPU, over the same memory.

It shows what PyTorch, Triton and CUDA refuse, wait for, capture and allocate. It cannot show speed, the numbers of
compiled kernels, or addresses outside of a tensor.
"""
