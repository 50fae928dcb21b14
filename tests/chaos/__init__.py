"""Faults at random against a whole node with real parts, repeatable by their seed."""
