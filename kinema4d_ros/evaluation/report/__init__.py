"""Report of an evaluation as HTML, Markdown, CSV and JSON."""

from kinema4d_ros.evaluation.report.write import write_report

__all__ = ["write_report"]
