"""Experiments that run from one command and say what they did: one file each, one function ``run``.

:mod:`~s2vgd.experiments.demo` is the small one. What they share is here too: drawing in
:mod:`~s2vgd.experiments.figures`, the page that is written in :mod:`~s2vgd.experiments.report`.
"""
