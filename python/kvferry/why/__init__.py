"""`kvferry why`: which step between P and D fails first, as engines' /metrics say it. Needs `prometheus_client`, no engine."""
