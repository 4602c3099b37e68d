"""Channels that share a scale, for each layout of weights. No torch: schemes and plans read them too."""

INT8_GROUP = 64
"""Channels of an activation that share a scale beside int8 weights on a CPU."""
BLOCK_GROUP = 32
"""Channels of a block (GGUF's Q4_0, Q4_1 and Q8_0): its weights share a scale, and so do their activations."""
NVFP4_GROUP, MXFP4_GROUP = 16, 32
"""Channels of 4-bit floats that share a scale."""
INT4_GROUP = 64
"""Channels of int4 weights on a GPU that share a scale and a zero."""
