"""Networks by shape: one file a topology, each expanding to plain hosts, switches and links."""
