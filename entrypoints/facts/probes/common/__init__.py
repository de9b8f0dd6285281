"""Facts of any host (processors, PCI devices, kernel settings, limits), and how vendor tools are run."""
