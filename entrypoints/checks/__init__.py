"""Facts compared with expectations: findings, and scripts that fix them."""
