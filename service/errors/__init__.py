"""Every error that a client receives: its status, its words, its hints, and its JSON in each API."""
