"""The processes that share a model: they meet, load, compute the same steps, and end together."""
