"""Who acts? Workers claim actions, call providers within their budgets, and settle what the answers prove."""
