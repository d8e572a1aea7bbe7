"""What commands show in a terminal, as tables."""
