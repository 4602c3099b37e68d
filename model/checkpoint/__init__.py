"""Model files: any format as a local directory, any directory as a stream of (name, tensor). Imports no torch."""
