"""A client of the OCI distribution API 1.1.

https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md

drydock has its own client because no library can publish over an unreliable connection. oras-py (0.2.43, read in
November 2026) has no timeouts, no Retry-After, no resumed uploads, no mounts and no referrers. skopeo, crane and oras
are separate programs that would have to be installed wherever drydock runs.
"""
