"""`kvferry top`: what engines' /metrics say of kvferry, live in a terminal. Needs `rich` and `prometheus_client`, no engine."""
