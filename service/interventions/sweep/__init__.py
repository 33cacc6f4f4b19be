"""One intervention at each place of a grid, and a number that says how far it changes the answer."""
