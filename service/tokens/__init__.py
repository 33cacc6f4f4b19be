"""Texts as token ids: the fields of requests, the tokenizer of a model, and the most probable next tokens."""
