"""Tasks of lexbench in inspect_ai: `inspect eval lexbench/passkey -T length=4096`.

inspect_ai finds `lexbench.parts.exchange.inspect.tasks` by its entry point.
"""
