"""What `perfd roofline` shows of more than one operation."""
