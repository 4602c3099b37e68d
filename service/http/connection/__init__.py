"""HTTP/1.1 on a connection: requests within limits and deadlines, responses as the client can read them."""
