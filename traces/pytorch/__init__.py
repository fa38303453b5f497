"""What PyTorch's recorders say, whichever file it stands in: calls, spans of time, and where a rank waited."""
