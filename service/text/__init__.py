"""Texts instead of token ids: ``/v1/text/{model}`` and ``/v1/tokenize/{model}``."""
