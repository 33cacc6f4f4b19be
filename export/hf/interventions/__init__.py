"""The graph of a model whose activations a request may change."""
