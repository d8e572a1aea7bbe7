"""Writing a recording while a job runs, and playing one."""
