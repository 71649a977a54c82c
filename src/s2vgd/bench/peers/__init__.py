"""The peers' side of the work, written as somebody would who uses them: one file a library.

Each is imported only where its package is installed.
"""
