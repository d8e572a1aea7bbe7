"""The part of perfd that hands numbers and alerts on to other systems."""
