"""Targets → one OCI layout archive that another machine loads, runs, publishes and rebuilds from, without network.

Source of the format: OCI image specification 1.1, image-layout.md, and its guidance for artifacts in manifest.md.
"""
