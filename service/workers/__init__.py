"""Processes: the supervisor, its workers, and the server that each of them runs."""
