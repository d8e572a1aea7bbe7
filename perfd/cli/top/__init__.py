"""The screens of `perfd top`."""

from perfd.cli.top.fleet_table import orders
from perfd.cli.top.keyboard import Wait, keys
from perfd.cli.top.screen_state import KEYS, Screen, ScreenPosition, press
from perfd.cli.top.screens import (
    fleet_click,
    fleet_screen,
    framed,
    help_screen,
    server_order,
    server_screen,
)
from perfd.cli.top.single_job import job_screen

__all__ = [
    "KEYS",
    "Screen",
    "ScreenPosition",
    "Wait",
    "fleet_click",
    "fleet_screen",
    "framed",
    "help_screen",
    "job_screen",
    "keys",
    "orders",
    "press",
    "server_order",
    "server_screen",
]
