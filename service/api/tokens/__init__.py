"""Endpoints that turn text or messages into token ids and back."""
