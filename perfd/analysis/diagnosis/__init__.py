"""What limits a job: findings with evidence, confidence and advice, and the job summary."""
