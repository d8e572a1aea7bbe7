"""What survives a restart: an SQLite file, its tables, and recovery from it."""
