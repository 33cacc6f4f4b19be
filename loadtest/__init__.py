"""Load on an attention server, and what came of it: ``heed loadtest``."""
