"""Clients of a running Weir, for the agent, the command line, and programs of your own."""

from control.client.admin import KEEP, AdminClient
from control.client.answers import Backend, Event, Lease, Limits, Node, Pool, Session, Whoami
from control.client.connection import Connection, ServiceError
from control.client.service import ServiceClient

__all__ = [
    "KEEP",
    "AdminClient",
    "Backend",
    "Connection",
    "Event",
    "Lease",
    "Limits",
    "Node",
    "Pool",
    "ServiceClient",
    "ServiceError",
    "Session",
    "Whoami",
]
