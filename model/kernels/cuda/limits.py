"""Limits of a program on a GPU, by compute capability (CUDA C++ Programming Guide, technical specifications)."""

SHARED_BYTES = {
    (8, 0): 163 * 1024,
    (8, 6): 99 * 1024,
    (8, 7): 163 * 1024,
    (8, 9): 99 * 1024,
    (9, 0): 227 * 1024,
    (10, 0): 227 * 1024,
    (10, 3): 227 * 1024,
    (12, 0): 99 * 1024,
}
"""The greatest number of bytes of shared memory of a program."""
LEAST_SHARED = min(SHARED_BYTES.values())
"""The limit of every GPU from 8.0 on."""


def shared_bytes(capability: tuple[int, int]) -> int:
    """Return the bytes of shared memory of a program; for an unknown capability, those that every GPU has."""
    return SHARED_BYTES.get(capability, LEAST_SHARED)
