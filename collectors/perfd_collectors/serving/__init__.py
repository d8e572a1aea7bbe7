"""What the collectors of serving engines share: exposition format, HTTP, reduction at the edge."""
