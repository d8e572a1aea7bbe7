"""Grafana dashboards as code; `python -m perfd_dashboards` in deploy/grafana writes their JSON."""
