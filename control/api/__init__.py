"""HTTP: the data plane for gateways, the admin plane for people. Knows no store."""
