"""Generation: the order of a request to the engine, its choices, and the text of their tokens."""
