"""The outside world for the demo and the tests: providers over real HTTP, with faults. Imports nothing of ours.

What it holds is the oracle: a test counts the sandbox's durable effects, neither HTTP calls nor ledger rows.
"""
