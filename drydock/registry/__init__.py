"""A client of the OCI distribution API 1.1: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md.

Our own, since none of the libraries does what publishing through failures needs. oras-py (0.2.43, read in November
2026) has neither time limits nor Retry-After, takes up no broken-off upload, mounts nothing, and knows no referrers;
skopeo, crane and oras are programs of their own that would have to be installed wherever drydock runs.
"""
