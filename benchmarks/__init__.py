"""Side-by-side measurements, each one command."""
