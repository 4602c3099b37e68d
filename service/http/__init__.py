"""Bytes on a connection: the server, its sockets, limits and deadlines, and server-sent events. Knows no endpoint."""
