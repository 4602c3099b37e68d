"""The engine process as the service starts, watches and replaces it."""
