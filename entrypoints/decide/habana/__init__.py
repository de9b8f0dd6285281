"""Decisions for Intel Gaudi."""
