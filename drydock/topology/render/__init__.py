"""A plan → files for Compose, Kubernetes and Ansible, and ranktables."""
