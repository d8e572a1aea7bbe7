"""What NCCL does inside a job: the plugin's rings."""
