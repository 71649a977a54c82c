"""Click logs of the Yahoo! Today module (Webscope R6A): read, converted to Parquet, or simulated.

Policies are evaluated on any of them by :mod:`s2vgd.bandits.replay`.
"""

from __future__ import annotations

from s2vgd.bandits.news.events import ArticleTable, Events, NewsLog
from s2vgd.bandits.news.parquet import NewsFile, Summary, convert
from s2vgd.bandits.news.reading import NewsText
from s2vgd.bandits.news.simulated import ClickModel, SimulatedLog, simulate

__all__ = [
    "ArticleTable",
    "ClickModel",
    "Events",
    "NewsFile",
    "NewsLog",
    "NewsText",
    "SimulatedLog",
    "Summary",
    "convert",
    "simulate",
]
