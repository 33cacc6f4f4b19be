"""Comparative measurements; each benchmark is one command."""
