"""The service's own HTTP/1.1: what lies between a listening socket and the WSGI application."""
