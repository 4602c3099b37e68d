"""Pages on disk: the files, and the threads that write and read them. Standard library only."""
