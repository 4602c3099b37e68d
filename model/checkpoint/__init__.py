"""Turns any model format into a local directory (without torch), and reads a directory as (name, matrix) pairs."""
