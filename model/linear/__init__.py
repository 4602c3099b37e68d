"""Weight schemes for projections: schemes.py has their facts, selection.py chooses, each has a file."""
