"""The hidden states of every layer, through the model's own final norm and head."""
