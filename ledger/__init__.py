"""What is true? States, keys, intents, the clock and roles; the only writer of an action's state."""
