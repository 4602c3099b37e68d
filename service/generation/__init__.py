"""Tokens in, text out: what a request asks of the engine, its choices, and the text of their tokens."""
