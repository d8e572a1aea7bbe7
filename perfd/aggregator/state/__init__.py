"""The state of jobs and nodes, filled from records and read by the analysis."""
