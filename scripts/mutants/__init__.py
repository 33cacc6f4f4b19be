"""How many mutants of the code the tests kill, and which lines they run."""
