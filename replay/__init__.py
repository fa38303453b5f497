"""Runs a trace on a network and says how long a step took, and why."""
