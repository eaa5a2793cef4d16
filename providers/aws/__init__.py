"""AWS by client tokens, on the example of EventBridge Scheduler: one schedule for each key, found again by its name."""
