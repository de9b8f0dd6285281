"""What a host is: probes and the facts they return."""
