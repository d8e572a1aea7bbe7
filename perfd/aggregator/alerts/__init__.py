"""Alerts: those of the embedded rule engine and those an Alertmanager sends."""
