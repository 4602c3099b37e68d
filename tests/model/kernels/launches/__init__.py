"""Functions that launch kernels, and the GPUs for which `compiling` compiles them: one file a family of kernels."""
