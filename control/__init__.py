"""Weir: admission control for self-hosted LLM streaming."""

__version__ = "0.1.0"
