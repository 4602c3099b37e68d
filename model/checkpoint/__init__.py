"""Model files: any format as a local directory (no torch needed), any directory as a stream of (name, matrix)."""
