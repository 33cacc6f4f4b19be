"""Small random models of every type that the installed transformers registers, and what the export says of each."""
