"""Which compiled tile serves each shape of weights: timed on this machine, and kept for the next start."""
