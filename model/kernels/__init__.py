"""CPU kernels in portable C, built with the package (build.py) and called by ctypes (native.py)."""
