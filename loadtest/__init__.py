"""``heed loadtest``: puts load on an attention server and reports throughput and latency."""
