"""Compare the graphs of a model with the model in transformers: ``examples`` of inputs, the model in ``float64``."""
