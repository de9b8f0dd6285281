"""Decisions for AWS Neuron."""
