"""matrix.yaml, accelerators and mirrors.yaml, read strictly."""
