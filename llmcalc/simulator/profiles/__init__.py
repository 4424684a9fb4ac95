"""What frameworks run for the steps of a program."""
