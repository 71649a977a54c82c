"""Structured Stein variational gradient descent: networks that know what they do not know."""
