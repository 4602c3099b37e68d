"""What a client may send."""
