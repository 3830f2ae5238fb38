"""Self-contained HTML reports: what a page is made of, how it is written, what a plan shows."""

from qwisp.report.page import Figure, Heading, Page, Table, to_html, write_report
from qwisp.report.plan import page_of, plan_page
from qwisp.report.share import share

__all__ = [
    "Figure",
    "Heading",
    "Page",
    "Table",
    "page_of",
    "plan_page",
    "share",
    "to_html",
    "write_report",
]
