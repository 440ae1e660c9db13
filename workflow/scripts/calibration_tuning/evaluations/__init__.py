"""The evaluations, a module each."""
