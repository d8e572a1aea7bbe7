"""What commands about inference servers share: where a server is read, reports on it, and watching it."""
