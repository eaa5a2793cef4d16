"""Counterfoil: one recorded intent, one bounded effect, one discoverable outcome for the side effects of LLM agents."""
