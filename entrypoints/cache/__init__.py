"""What is kept between starts: compiled code, models, and their quota."""
