"""Cake Train: training kernels whose package name says what their gradients promise."""
