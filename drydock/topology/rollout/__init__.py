"""A planned topology is started, proved, watched, replaced and stopped, on Compose or by Ansible."""
