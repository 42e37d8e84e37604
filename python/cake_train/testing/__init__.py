"""Checks that a package of training kernels can run on itself; each module here is imported by its own name."""
