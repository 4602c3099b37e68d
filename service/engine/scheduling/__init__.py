"""The choice of the tokens of each step: the queue, sequences, their pages and drafts."""
