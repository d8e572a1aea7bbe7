"""What a node lacks for perfd to see everything, and how to mend it: facts are probed, checks are pure."""
