"""Stored responses and conversations: to read, change, cancel and delete them."""
