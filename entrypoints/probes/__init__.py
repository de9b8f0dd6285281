"""Probes: what the kernel and a vendor's tool say. One module per accelerator, and what all hosts have."""
