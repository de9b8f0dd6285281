"""The pages that `plan --html` and `check --html` write."""
