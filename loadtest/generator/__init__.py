"""Generate load: connections in worker processes."""
