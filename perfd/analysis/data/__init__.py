"""The input of the analysis: the state of one job as arrays, and statistics that tolerate missing values."""
