"""What the machine is: cores, memory, devices, transfers to them, and child processes. Knows nothing of models."""
