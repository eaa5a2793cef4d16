"""`counterfoil demo`: one incident, told twice for real: by a harness that trusts its transcript, and by Counterfoil."""
