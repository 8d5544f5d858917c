"""Reports: from run directories or score files to tables, figures and one HTML page."""
