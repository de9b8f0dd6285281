"""Rendered playbooks, run: Ansible in an environment of its own, and what it answers."""
