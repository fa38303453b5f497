"""Networks that really exist while they are needed. Knows nothing of traces or of replaying."""
