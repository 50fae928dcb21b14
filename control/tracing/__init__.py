"""Spans for clients that trace (OpenTelemetry)."""
