"""The summary as text for people, and the files it is saved to."""
