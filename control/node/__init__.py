"""``weir up``: one node's processes in the foreground."""
