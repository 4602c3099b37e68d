"""What may happen to the server's processes and machine."""
