"""Probes and the facts about a host that they return."""
