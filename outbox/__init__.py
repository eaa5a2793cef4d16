"""How does an intent get in, and leave? Enqueue and the step rules write it down; the relay publishes its wake-up.

The agent's side imports neither `broker` nor `relay`, so it never loads celery or redis.
"""
