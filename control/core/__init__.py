"""The rules of admission. Pure: time is a parameter, nothing here does I/O.

``ledger`` is the door: it owns every lease, session and pool, and each of its steps is a
function of (state, event, now).
"""
