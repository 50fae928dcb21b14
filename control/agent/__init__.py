"""The node's daemon: the second witness of each stream's end, and what the node has left."""
