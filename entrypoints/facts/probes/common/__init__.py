"""What any host has: processors, PCI devices, kernel settings, limits; and running vendors' tools."""
