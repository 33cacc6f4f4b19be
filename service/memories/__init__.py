"""Keys and values that are stored once and queried many times."""
