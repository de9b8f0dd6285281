"""What is said of an image beside it: bills of materials, provenance, licences, signatures, as OCI referrers."""
