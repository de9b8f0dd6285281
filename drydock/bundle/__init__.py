"""Bundles: one OCI layout archive from which another machine loads, runs, publishes and rebuilds images offline.

Source of the format: OCI image specification 1.1, image-layout.md, and its guidance for artifacts in manifest.md.
"""
