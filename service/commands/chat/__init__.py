"""`noria chat`: a conversation, what its server says of its fields, the terminal, the commands with a slash."""
