"""Probes, which return the facts about a host."""
