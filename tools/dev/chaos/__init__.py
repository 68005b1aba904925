"""./dev chaos: real engines under steady requests while faults of every kind rain below the library."""
