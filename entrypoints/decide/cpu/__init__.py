"""Decisions for CPUs, and for OpenVINO on them."""
