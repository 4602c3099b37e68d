"""What GPUs allow a program, by compute capability (CUDA C++ Programming Guide, technical specifications)."""

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
"""What every GPU from 8.0 on has."""


def shared_bytes(capability: tuple[int, int]) -> int:
    """Bytes of shared memory that a program may have; for a capability that is not known, what every GPU has."""
    return SHARED_BYTES.get(capability, LEAST_SHARED)
