"""Bytes: sizes of weights, KV cache and steps, and the plan that fits them into a machine."""
