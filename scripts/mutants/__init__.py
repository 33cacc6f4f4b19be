"""Count the mutants of the code that the tests kill, and find the tests that run each line."""
