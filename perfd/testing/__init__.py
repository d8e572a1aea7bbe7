"""The check of the contract of collectors, for their authors."""
