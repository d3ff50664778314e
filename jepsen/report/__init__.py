"""Report: what a person reads of a run: the summary, the pictures, the page, the timeline, biographies of jobs."""

from jepsen.report.text import summary
from jepsen.report.writing import write

__all__ = ["summary", "write"]
