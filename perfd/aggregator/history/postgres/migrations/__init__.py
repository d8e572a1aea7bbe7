"""Alembic's scripts, which bring the tables up to date."""
