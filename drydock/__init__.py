"""The build side: one matrix in, reproducible serving images out."""
