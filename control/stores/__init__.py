"""Where the ledger's state lives, behind one Protocol."""

from control.stores.base import Store, StoreError
from control.stores.memory import MemoryStore

__all__ = ["MemoryStore", "Store", "StoreError"]
