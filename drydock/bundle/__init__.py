"""One archive from which another machine loads images, runs them or builds them again, without network.

Source of the format: OCI image specification 1.1, image-layout.md, and its guidance for artifacts in manifest.md.
"""
