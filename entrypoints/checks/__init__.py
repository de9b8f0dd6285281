"""Facts compared with expectations: findings, scripts that fix them."""
