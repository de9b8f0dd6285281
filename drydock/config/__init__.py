"""matrix.yaml, the files of accelerators, mirrors.yaml: read strictly."""
