"""Experiments that run from one command and say what they did.

:mod:`~s2vgd.experiments.demo` is the small one. Those of the paper are one file each, ``table1``,
``table2``, ``hyper``, ``toy_classification`` and ``toy_regression``, which say what is run;
:mod:`~s2vgd.experiments.harness` runs it and keeps what is finished, and
:mod:`~s2vgd.experiments.reproduction` makes a page of it, whose parts are in
:mod:`~s2vgd.experiments.sections`. Drawing is in ``figures`` and ``plots``, HTML in ``report``.
"""
