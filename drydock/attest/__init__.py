"""Documents about an image: bill of materials, licences, provenance, signatures."""
