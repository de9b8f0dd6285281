"""Inspect, compare, verify and audit images."""
