"""What is kept between starts: compiled code, models, their quota."""
