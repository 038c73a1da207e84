"""A results folder in the browser, with live progress of a sweep that fills it: on loopback, and read-only."""

from lexbench.report.view.loopback import serve, server

__all__ = ["serve", "server"]
