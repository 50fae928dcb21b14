"""Clients of a running Weir, for the agent, the command line, and programs of your own."""

from control.client.connection import Connection, ServiceError
from control.client.service import ServiceClient

__all__ = ["Connection", "ServiceClient", "ServiceError"]
