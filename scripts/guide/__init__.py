"""Build the parts of the documentation that are made from the code: `make docs`."""
