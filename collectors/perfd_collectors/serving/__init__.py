"""What the collectors of serving engines share: the exposition format, HTTP, and the reduction at the edge."""
