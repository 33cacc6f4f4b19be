"""Bytes and ASGI: connection, body, authentication, and the endpoint that runs inference."""
