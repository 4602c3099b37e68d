"""Images from files to pixels in the grid of a model's tokens, in a process of their own. No torch."""
