"""Circles of a graph of names."""


def circles(graph):
    """Each set of names that all reach each other, sorted. `graph`: name -> the names that it needs."""
    reached = {name: _reach(graph, name) for name in graph}
    found = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(group for group in found if len(group) > 1)


def _reach(graph, start):
    seen = set()
    waiting = [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name in graph and name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen
