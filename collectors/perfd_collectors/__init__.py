"""The collectors that ship with perfd."""
