"""What the adapter of any engine needs, with no word of an engine: it imports none.

    messages   what the scheduler side and the ranks tell each other in each step
    worker     a rank's side: orders to its node, and its node's events back
    producer   the scheduler side of handing prompts over
    consumer   the scheduler side of loading them
    control    both, and their node
    errors     why a request has failed, from the engine to the clients' servers; middleware: to the clients
    metrics    the nodes' numbers; weights: which weights an engine has; config, log, wrapping
"""
