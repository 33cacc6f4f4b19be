"""Keys and values that a server keeps: stored once, queried many times."""
