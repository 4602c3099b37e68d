"""The record of the last ten minutes, and the sentence on what is wrong that rules find in it."""
