"""The input of the analysis: the state of one job as arrays, and statistics that tolerate missing values.

Modules are imported one by one: traces need the statistics without the records of jobs.
"""
