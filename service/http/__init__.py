"""Bytes on a connection: the server, its limits, middleware, errors and server-sent events. Knows no endpoint."""
