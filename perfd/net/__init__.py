"""The HTTP server and client, with limits on time and connections, and TLS."""
