"""The scheduler: admission, queue, batches and threads."""
