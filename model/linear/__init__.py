"""Weight schemes for projections: schemes.py has their facts, choice.py chooses, each has a file."""
