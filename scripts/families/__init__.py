"""Small random models of every type that the installed transformers registers, and the result of exporting each."""
