"""The machine: cores, memory, devices, transfers to them, and child processes. Knows nothing of models."""
