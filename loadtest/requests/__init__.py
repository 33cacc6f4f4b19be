"""The requests that are sent, and the server that they are sent to."""
