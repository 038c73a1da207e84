"""`lexbench view`: a results folder in the browser with live progress of its runs; read-only, on loopback."""

from lexbench.parts.web.view.loopback import bind_server, serve

__all__ = ["bind_server", "serve"]
