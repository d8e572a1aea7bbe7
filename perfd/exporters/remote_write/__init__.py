"""Sends series by Prometheus remote write."""
