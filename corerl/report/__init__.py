"""Reports: from run directories or score files to tables, figures and one HTML page."""

from corerl.report.cli import add_arguments, run

__all__ = ["add_arguments", "run"]
