"""Removes environment variables and other secrets from captured files before they leave the node."""
