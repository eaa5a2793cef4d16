"""Linear: issues and comments under ids of our own, through its GraphQL API, found again by id and by our mark."""
