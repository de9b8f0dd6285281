"""Start a container for a machine: docker, compose, Kubernetes."""
