"""What operators do from a terminal: the admin plane as commands. One module a job; only
``parser`` and ``streams`` are imported before it is known which."""
