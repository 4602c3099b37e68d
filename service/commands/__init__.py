"""The commands of `noria`, and the flags that they take."""
